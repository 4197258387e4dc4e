// Grammars hold whatever a model prefers: what they let through is read back by JSON.parse, a schema validator, RegExp.

import assert from "node:assert/strict";
import { test } from "node:test";
import { pathToFileURL } from "node:url";
import { Grammar } from "../../../bindings_web/src/grammar/grammar.js";
import { grammarSource } from "../../../bindings_web/src/grammar/response_format.js";
import { INVALID, REFUSED, SCHEMAS } from "./grammar_cases.mjs";
import { BYTES, PIECES, VOCABULARIES, WISHES, random, reply } from "./grammar_models.mjs";

const modules =
  process.env.EMBEDLLM_NODE_MODULES ?? new URL("../../../bindings_web/node_modules", import.meta.url).pathname;
const load = (path) =>
  import(pathToFileURL(`${modules}/${path}`).href).then((module) => module.default.default ?? module.default);
const Ajv = await load("ajv/dist/2020.js");
const addFormats = await load("ajv-formats/dist/index.js");

// ---- schemas

const ajv = addFormats(new Ajv({ strict: false, allErrors: true }));

for (const name of Object.keys(VOCABULARIES)) {
  test(`whatever a model prefers, its reply is valid: ${name}`, () => {
    for (const [place, schema] of SCHEMAS.entries()) {
      const grammar = Grammar.compile({ jsonSchema: schema }, VOCABULARIES[name]);
      const isValid = ajv.compile(schema);
      for (const [round, [wish, bonus]] of Object.entries(WISHES).entries()) {
        const { text, said, isWhole } = reply(grammar, name, bonus, 100 * place + round);
        assert.ok(isWhole, `${wish}, ${JSON.stringify(schema)}: no end of ${text.slice(-100)}`);
        assert.ok(Buffer.from(text).equals(said), `not UTF-8: ${text}`);
        const value = JSON.parse(text);
        assert.ok(isValid(value), `${wish}, ${JSON.stringify(schema)}: ${text} ${ajv.errorsText(isValid.errors)}`);
        const gaps = text.replace(/"(?:[^"\\]|\\.)*"/g, "").match(/\s+/g) ?? [];
        assert.ok(
          gaps.every((gap) => gap.length <= 66),
          `white space runs on: ${JSON.stringify(text)}`,
        );
      }
    }
  });
}

test("a schema's own examples can be said", () => {
  for (const [schema, texts] of [
    [
      { type: "object", properties: { a: { type: "integer" }, b: {} }, required: ["a"] },
      ['{"a":1}', '{"a": 1, "b": [{}, null]}', '{\n  "a": 1\n}', '{ "a": 12, "b": "\\u00e9\\n" }'],
    ],
    [{ type: "number", exclusiveMinimum: 0, maximum: 2.5 }, ["0.001", "1", "2.5", "2.50", "2", "1.999", "0.10"]],
    [{ type: "integer", minimum: -12, maximum: 345 }, ["-12", "-1", "0", "9", "10", "99", "100", "345", "299"]],
    [
      { type: "object", additionalProperties: { type: "string" }, properties: { ab: {} } },
      ['{"ab": 1, "a": "", "abc": "x"}', '{"b":"\u00fc"}', "{}"],
    ],
    [{ type: "string", pattern: '"b\\\\$' }, ['"\\"b\\\\"', '"aa\\"b\\\\"']],
    [
      { type: "array", prefixItems: [{ const: 1 }, { type: "null" }], items: { type: "boolean" } },
      ["[]", "[1]", "[1, null]", "[1,null,true,false]"],
    ],
    [{ type: "array", items: { const: 1 }, uniqueItems: false }, ["[1, 1]"]],
    [{}, ['{"a": [1, -2.5e3, "x", {"b": null}]}', "true", "[[[]]]"]],
  ]) {
    for (const text of texts)
      assert.ok(says({ jsonSchema: schema }, text), `${JSON.stringify(schema)} refuses ${text}`);
  }
});

test("what does not fulfil a schema cannot be said", () => {
  for (const [schema, texts] of INVALID) {
    for (const text of texts)
      assert.ok(!says({ jsonSchema: schema }, text), `${JSON.stringify(schema)} lets ${text} through`);
  }
});

test("a keyword that cannot be followed is named with its place", () => {
  for (const [schema, ...words] of REFUSED) {
    assert.throws(
      () => Grammar.compile({ jsonSchema: schema }, VOCABULARIES["byte level"]),
      (error) => error instanceof RangeError && words.every((word) => error.message.includes(word)),
      `${JSON.stringify(schema)} should name ${words}`,
    );
  }
});

// ---- masks

test("a mask has a token if and only if its bytes can follow", () => {
  const { texts, stopTokens } = VOCABULARIES["byte level"];
  for (const [place, schema] of SCHEMAS.entries()) {
    const grammar = Grammar.compile({ jsonSchema: schema }, { texts, stopTokens });
    const uniform = random(place);
    const matcher = grammar.matcher();
    let said = [];
    for (let step = 0; step < 25 && !matcher.isDone; step++) {
      const { bits } = matcher;
      const isSet = BYTES["byte level"].map((_, token) => (bits[token >> 5] >>> (token & 31)) & 1);
      for (const [token, bytes] of BYTES["byte level"].entries()) {
        const expected = stopTokens.includes(token)
          ? matcher.isStopAllowed
          : bytes.length > 0 && follows(grammar, [...said, ...bytes]);
        assert.equal(Boolean(isSet[token]), expected, `${JSON.stringify(schema)}: ${Buffer.from(said)} + ${bytes}`);
      }
      const choices = [...isSet.keys()].filter((token) => isSet[token] && !stopTokens.includes(token));
      const token = choices[Math.floor(uniform() * choices.length)];
      matcher.note(token);
      said = [...said, ...BYTES["byte level"][token]];
    }
  }
});

/** Whether these bytes, which are tokens 0 to 255 of that vocabulary, can be said one by one. */
function follows(grammar, bytes) {
  const matcher = grammar.matcher();
  try {
    for (const byte of bytes) matcher.note(byte);
  } catch {
    return false;
  }
  return true;
}

/** Whether a grammar's whole reply can be this text. */
function says(source, text) {
  const grammar = Grammar.compile(source, VOCABULARIES["byte level"]);
  const matcher = grammar.matcher();
  try {
    for (const byte of Buffer.from(text)) matcher.note(byte);
  } catch {
    return false;
  }
  return matcher.isStopAllowed;
}

test("two tokens of the same bytes are both allowed, special tokens never", () => {
  const vocab = { a: 0, b: 1 };
  const added_tokens = [{ id: 2, content: "a", special: false }, { id: 3, content: "a", special: true }, { id: 4, content: "", special: true }]; // prettier-ignore
  const texts = new Map([
    ["tokenizer.json", JSON.stringify({ model: { vocab }, decoder: { type: "ByteLevel" }, added_tokens })],
  ]);
  const matcher = Grammar.compile({ regex: "a?" }, { texts, stopTokens: [4, 70] }).matcher();
  assert.deepEqual([...matcher.bits], [0b10101, 0, 1 << 6]);
  matcher.note(2);
  assert.deepEqual([matcher.isDone, ...matcher.bits], [true, 0b10000, 0, 1 << 6]);
});

test("a vocabulary that lacks a byte that is needed is an error", () => {
  const texts = new Map([
    ["tokenizer.json", JSON.stringify({ model: { vocab: { a: 0 } }, decoder: { type: "ByteLevel" } })],
  ]);
  const matcher = Grammar.compile({ regex: "b" }, { texts, stopTokens: [1] }).matcher();
  assert.throws(() => matcher.bits, /no token is allowed/);
});

test("a decoder whose bytes are not known is refused", () => {
  for (const decoder of [null, { type: "WordPiece", prefix: "##" }]) {
    const texts = new Map([["tokenizer.json", JSON.stringify({ model: { vocab: { a: 0 } }, decoder })]]);
    assert.throws(() => Grammar.compile({ regex: "a" }, { texts, stopTokens: [1] }), { name: "PackageError" });
  }
});

test("a token that the mask forbids is not taken, nor a stop before the end", () => {
  const matcher = Grammar.compile({ choices: ["yes", "no"] }, VOCABULARIES["byte level"]).matcher();
  assert.throws(() => matcher.note("x".charCodeAt(0)), /not allowed/);
  assert.throws(() => matcher.note(256 + PIECES.length), /not allowed/);
  assert.equal(matcher.isStopAllowed, false);
});

test("requests run one grammar apart", () => {
  const grammar = Grammar.compile({ choices: ["aa", "b"] }, VOCABULARIES["byte level"]);
  const [one, other] = [grammar.matcher(), grammar.matcher()];
  one.note(66 + 32);
  assert.deepEqual([one.isDone, other.isDone], [true, false]);
});

// ---- regex, choices, EBNF

const REGEXES = ["[a-c]+x?", "(ab|cd){2,3}", "\\d{4}-\\d{2}", "[^\"\\\\\\n]{1,5}", "\\w{1,9}@\\w{1,9}\\.(?:com|org)", "^a.c$", "caf\u00e9|\u{1F600}{2}", "[\u00e0-\u00ff\u4e00-\u9fff]{3}", "a\\.b\\x41\\u0042", "x*y*z*", "(?:a|)b", "[\\s\\S]{2}", "[]a^-]|[-b]"]; // prettier-ignore

test("what a regex lets through matches it", () => {
  for (const [place, regex] of REGEXES.entries()) {
    if (regex.includes("[]")) continue;
    const whole = new RegExp(`^(?:${regex})$`, "u");
    for (const name of ["demo", "byte level", "byte fallback"]) {
      const grammar = Grammar.compile({ regex }, VOCABULARIES[name]);
      for (const [round, bonus] of Object.values(WISHES).entries()) {
        const { text, isWhole } = reply(grammar, name, bonus, place * 10 + round, 12);
        assert.ok(isWhole && whole.test(text), `${regex}: ${JSON.stringify(text)}`);
      }
    }
  }
});

test("a regex takes what RegExp takes, of all short texts", () => {
  const letters = [..."ab-1.\u00e9 "];
  const texts = [
    "",
    ...letters,
    ...letters.flatMap((one) => letters.map((other) => one + other)),
    ..."aab,aba,abab,a.b,1-1,bbb".split(","),
  ];
  for (const regex of [
    "a*b?",
    "[^a]",
    "[a-b]{2}",
    "\\w\\W",
    "(a|b)+",
    ".",
    "\\s|\\d",
    "a{0}b",
    "(?:ab){2}|\u00e9",
    "[\\d.-]+",
    "\\S\\s",
    "[[a]", // no class in a class, as POSIX and Rust have them
    "[[:b.]+",
    "[a&&b]+",
    "[^[]",
  ]) {
    const whole = new RegExp(`^(?:${regex})$`, "u");
    for (const text of texts)
      assert.equal(says({ regex }, text), whole.test(text), `${regex}: ${JSON.stringify(text)}`);
  }
});

test("a regex that cannot be followed is refused", () => {
  for (const regex of [
    "(?=a)b",
    "(?<!a)b",
    "a*?",
    "\\bword",
    "(a)\\1",
    "\\p{L}",
    "a(b",
    "a)",
    "[a",
    "*a",
    "a{3,2}",
    "a$b",
    "[b-a]",
    "[[:alpha:]]", // a class, and a bracket that stands alone
    "\\",
  ]) {
    assert.throws(() => Grammar.compile({ regex }, VOCABULARIES["byte level"]), RangeError, regex);
  }
});

test("EBNF says what its rules say", () => {
  const ebnf = `
    root ::= sum "\\n"   # the whole reply
    sum ::= term (("+" | "-") term)*
    term ::= [0-9]{1,3} | "(" sum ")" | [^\\x00-\\x7f]
  `;
  for (const text of ["1\n", "1+22-333\n", "(1+(2))-\u00e9\n"]) assert.ok(says({ ebnf }, text), text);
  for (const text of ["1", "1+\n", "1234\n", "(1\n", "a\n"]) assert.ok(!says({ ebnf }, text), text);
  const right = 'root ::= item ("," item)*\nitem ::= "a" | "[" root "]"';
  assert.ok(says({ ebnf: right }, `${"[".repeat(50)}a${"]".repeat(50)}`));
});

test("EBNF that cannot be followed is refused", () => {
  for (const [ebnf, word] of [
    ['start ::= "a"', "root"],
    ["root ::= missing", "missing"],
    ['root ::= root "a" | "b"', "begins with itself"],
    ['root ::= x? root "a" | "b"\nx ::= "y"', "begins with itself"],
    ['root ::= "a" root', "no finite text"],
    ['root ::= "a"\nroot ::= "b"', "line 2"],
    ['root ::= ("a"', "expected ')'"],
    ["root ::= @", "line 1"],
  ]) {
    assert.throws(
      () => Grammar.compile({ ebnf }, VOCABULARIES["byte level"]),
      (error) => error instanceof RangeError && error.message.includes(word),
      ebnf,
    );
  }
});

test("a source is one of four, and a choice has a text", () => {
  for (const source of [{}, { regex: "a", ebnf: "b" }, { choices: [] }]) {
    assert.throws(() => Grammar.compile(source, VOCABULARIES["byte level"]), RangeError);
  }
});

test("response_format is read as OpenAI, llama.cpp and Ollama write it", () => {
  const schema = { type: "object", properties: {}, additionalProperties: false };
  assert.equal(grammarSource(undefined), null);
  assert.equal(grammarSource({ type: "text" }), null);
  assert.deepEqual(grammarSource({ type: "json_object" }), { jsonSchema: { type: "object" } });
  assert.deepEqual(grammarSource({ type: "json_schema", json_schema: { name: "x", strict: true, schema } }), {
    jsonSchema: schema,
  });
  for (const each of [schema, { type: ["string", "null"] }, { anyOf: [{ const: 1 }] }, { enum: ["a"] }]) {
    assert.deepEqual(grammarSource(each), { jsonSchema: each }); // as Ollama has it
    assert.deepEqual(grammarSource({ type: "json_object", schema: each }), { jsonSchema: each }); // as llama.cpp
  }
  for (const format of [{}, "json", { type: "xml" }, { type: {} }, { type: "json_schema" }, { type: "json_schema", json_schema: {} }]) {
    assert.throws(() => grammarSource(format), RangeError);
  }
});
