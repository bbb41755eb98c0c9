// What people type to choose names: words, or /expression/; and runs: words, and `name:value`, `name=value`,
// `name<number`. A leading "-" negates a condition.

/**
 * Return {test, names, error}: test(run) is true for runs that match; names are those of the columns that it needs.
 * @param {string} text `lr<0.01 state:failed "two words" -tag:old`
 * @param {(name: string) => string|null} resolve the column that a name means, null for none
 * @param {(run: Object, column: string) => *} valueOf
 * @param {(run: Object) => string} textOf all of a run in lower case
 */
export function parseFilter(text, resolve, valueOf, textOf) {
  const names = [];
  const tests = [];
  for (const [, sign, word] of text.matchAll(/(-?)((?:"[^"]*"|[^\s"])+)/g)) {
    const found = /^([^":<>=][^:<>=]*)(<=|>=|<|>|=|:)(.*)$/.exec(word);
    let test;
    if (found) {
      const [, name, sign, given] = found;
      const value = given.replaceAll('"', "");
      const column = resolve(name);
      if (column === null) return failed(`there is no column ${name}; put words with ${sign} in quotes: "${word}"`);
      if (value === "") return failed(`${name}${sign} lacks a value`);
      names.push(column);
      test = comparison(column, sign, value, valueOf);
      if (!test) return failed(`${word}: ${value} is neither a number nor a date; use ${name}:${value} for a text`);
    } else {
      const part = word.replaceAll('"', "").toLowerCase();
      test = (run) => textOf(run).includes(part);
    }
    tests.push(sign ? (run) => !test(run) : test);
  }
  return { test: (run) => tests.every((test) => test(run)), names, error: null };
}

function failed(error) {
  return { test: () => true, names: [], error };
}

function comparison(column, sign, value, valueOf) {
  if (sign === ":") {
    const part = value.toLowerCase();
    return (run) => words(valueOf(run, column)).some((word) => word.includes(part));
  }
  const limit = numberOf(value);
  if (sign === "=") {
    const whole = value.toLowerCase();
    return (run) => {
      const own = valueOf(run, column);
      return (!Number.isNaN(limit) && numberOf(own) === limit) || words(own).includes(whole);
    };
  }
  if (Number.isNaN(limit)) return null;
  const holds = { "<": (a) => a < limit, "<=": (a) => a <= limit, ">": (a) => a > limit, ">=": (a) => a >= limit }[sign];
  return (run) => holds(numberOf(valueOf(run, column)));
}

function words(value) {
  if (value === null || value === undefined) return [];
  return (Array.isArray(value) ? value : [value]).map((item) => String(item).toLowerCase());
}

/** Return a number, of a date its milliseconds; NaN for all else. */
function numberOf(value) {
  if (typeof value === "number") return value;
  if (typeof value !== "string" || value.trim() === "") return NaN;
  const number = Number(value);
  return Number.isNaN(number) && /^\d{4}-\d\d/.test(value) ? Date.parse(value) : number;
}

/** Return {test, isEmpty}: test(name) is true for names with all words, in any case. */
export function wordFilter(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return { test: (name) => words.every((word) => name.toLowerCase().includes(word)), isEmpty: !words.length };
}

/**
 * Return {test, isEmpty, error}: test(name) is true for names with all words, in any case, or with a match of /expression/.
 * error: why an expression is not valid, in one line; then test is null.
 */
export function nameFilter(text) {
  const expression = /^\s*\/(.+)\/\s*$/.exec(text)?.[1];
  if (expression) {
    try {
      const pattern = new RegExp(expression, "i");
      return { test: (name) => pattern.test(name), isEmpty: false };
    } catch (error) {
      return { test: null, isEmpty: false, error: error.message };
    }
  }
  return wordFilter(text);
}
