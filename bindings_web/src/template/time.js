/** Python's strftime for what chat templates ask of it, in English, as Python writes it without a locale. */

import { unsupported } from "./values.js";

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];

/** @param {Date} time in the zone of the page @param {string} form */
export function strftime(time, form) {
  /** @param {number} value */
  const two = (value, size = 2) => String(value).padStart(size, "0");
  const hour12 = time.getHours() % 12 || 12;
  const yearDay = Math.round((Date.UTC(time.getFullYear(), time.getMonth(), time.getDate()) - Date.UTC(time.getFullYear(), 0, 0)) / 86400000);
  /** @type {Record<string, string>} */
  const marks = {
    "%": "%", n: "\n", t: "\t",
    a: DAYS[time.getDay()].slice(0, 3), A: DAYS[time.getDay()], w: String(time.getDay()), u: String(time.getDay() || 7),
    d: two(time.getDate()), j: two(yearDay, 3), e: String(time.getDate()).padStart(2, " "),
    b: MONTHS[time.getMonth()].slice(0, 3), B: MONTHS[time.getMonth()], m: two(time.getMonth() + 1),
    y: two(time.getFullYear() % 100), Y: String(time.getFullYear()),
    H: two(time.getHours()), I: two(hour12), p: time.getHours() < 12 ? "AM" : "PM",
    M: two(time.getMinutes()), S: two(time.getSeconds()), f: two(time.getMilliseconds() * 1000, 6),
    Z: "", z: "",
  };
  const plain = form.replace(/%F/g, "%Y-%m-%d").replace(/%T/g, "%H:%M:%S").replace(/%D/g, "%m/%d/%y").replace(/%R/g, "%H:%M");
  return plain.replace(/%(-?)(.?)/gs, (_, dash, mark) => {
    if (!Object.hasOwn(marks, mark)) return unsupported(`'%${dash}${mark}' in strftime_now`);
    return dash ? marks[mark].replace(/^[0 ]+(?=.)/, "") : marks[mark];
  });
}
