// What must hold before a grammar is run: it can end, and no rule begins with itself.

/** @import { Expression, Rule } from "./expression.js" */

/**
 * The expression without what can never be completed, so that whatever is begun can be brought to an end.
 *
 * @param {Expression} root
 * @param {string} subject what the grammar was made from, for the error
 * @returns {Expression}
 * @throws RangeError when nothing is left, or a rule begins with itself
 */
export function checked(root, subject) {
  const all = reachable(root);
  const finite = fixedPoint(all, completes);
  if (!finite.has(root)) {
    throw new RangeError(
      `no finite text fulfils ${subject}: it demands itself again and again, or something that nothing can be. ` +
        "Make the part that contains itself optional, and look for bounds that contradict each other.",
    );
  }
  for (const expression of all) {
    if (expression.kind === "choice") expression.items = expression.items.filter((item) => finite.has(item));
    if (expression.kind === "repeat" && !finite.has(expression.item)) expression.most = 0;
  }
  refuseLeftRecursion(root, subject);
  return root;
}

/** Those expressions that the empty text fulfils. @param {Expression} root @returns {Set<Expression>} */
export function nullable(root) {
  return fixedPoint(reachable(root), (expression, known) => {
    if (expression.kind === "text" || expression.kind === "set") return false;
    if (expression.kind === "repeat" && expression.least === 0) return true;
    return completes(expression, known);
  });
}

/** @param {Expression} expression @param {Set<Expression>} known @returns {boolean} */
function completes(expression, known) {
  switch (expression.kind) {
    case "text":
      return true;
    case "set":
      return expression.members.includes(1);
    case "sequence":
      return expression.items.every((item) => known.has(item));
    case "choice":
      return expression.items.some((item) => known.has(item));
    case "repeat":
      return expression.least === 0 || known.has(expression.item);
    case "rule":
      return known.has(body(expression));
  }
}

/** @param {Expression} root @returns {Expression[]} each once, what contains another before it */
function reachable(root) {
  const found = new Set([root]);
  for (const expression of found) for (const part of parts(expression)) found.add(part);
  return [...found];
}

/** @param {Expression} expression @returns {Expression[]} */
function parts(expression) {
  if (expression.kind === "sequence" || expression.kind === "choice") return expression.items;
  if (expression.kind === "repeat") return [expression.item];
  return expression.kind === "rule" ? [body(expression)] : [];
}

/** @param {Rule} rule @returns {Expression} */
export function body(rule) {
  if (!rule.of)
    throw new RangeError(`the rule '${rule.name}' is used but not defined. Define it, or correct its name.`);
  return rule.of;
}

/**
 * The smallest set that `holds` says holds.
 *
 * @param {Expression[]} all
 * @param {(expression: Expression, known: Set<Expression>) => boolean} holds
 */
function fixedPoint(all, holds) {
  /** @type {Set<Expression>} */
  const known = new Set();
  for (let before = -1; before !== known.size;) {
    before = known.size;
    // parts come last in the list, and most need no second round when they are decided first
    for (let at = all.length - 1; at >= 0; at--) if (!known.has(all[at]) && holds(all[at], known)) known.add(all[at]);
  }
  return known;
}

/** @param {Expression} root @param {string} subject */
function refuseLeftRecursion(root, subject) {
  const empty = nullable(root);
  /** @type {Map<Expression, "open" | "done">} */
  const seen = new Map();
  /** @type {{expression: Expression, leaves: boolean}[]} */
  const work = reachable(root).map((expression) => ({ expression, leaves: false }));
  for (let task = work.pop(); task; task = work.pop()) {
    const { expression, leaves } = task;
    if (leaves) seen.set(expression, "done");
    if (seen.has(expression)) continue;
    seen.set(expression, "open");
    work.push({ expression, leaves: true });
    for (const part of beginnings(expression, empty)) {
      if (seen.get(part) === "open") {
        const name = [expression, part].find((one) => one.kind === "rule");
        throw new RangeError(
          `a rule of ${subject} begins with itself${name?.kind === "rule" ? ` ('${name.name}')` : ""}. ` +
            "Let it begin with something else: 'list ::= item list?' for 'list ::= list? item'.",
        );
      }
      work.push({ expression: part, leaves: false });
    }
  }
}

/** @param {Expression} expression @param {Set<Expression>} empty @returns {Expression[]} what may be read first */
function beginnings(expression, empty) {
  if (expression.kind !== "sequence") return parts(expression);
  const solid = expression.items.findIndex((item) => !empty.has(item));
  return solid < 0 ? expression.items : expression.items.slice(0, solid + 1);
}
