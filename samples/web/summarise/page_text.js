// The text of a page: runs in that page, so that it can use nothing from outside of itself.

/** What is selected, else the article, else all that is shown. @returns {{title: string, text: string}} */
export function pageText() {
  const selected = String(getSelection() ?? "").trim();
  const articles = [...document.querySelectorAll("article, main, [role=main]")].map((one) => /** @type {HTMLElement} */ (one).innerText.trim());
  const longest = articles.reduce((best, one) => (one.length > best.length ? one : best), "");
  const all = document.body?.innerText.trim() ?? "";
  const isMost = longest.length > all.length / 3; // a teaser is no article
  return { title: document.title, text: selected || (isMost ? longest : all) };
}
