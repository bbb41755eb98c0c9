// What people type to choose among thousands of names: words, or a regular expression between slashes.

/**
 * Return {test, isEmpty, error}: test(name) is true for names with all words, in any case, or with a match of /expression/.
 * error: why an expression is not valid, in one line; then test is null.
 */
export function nameFilter(text) {
  const expression = /^\s*\/(.+)\/\s*$/.exec(text)?.[1];
  if (expression) {
    try {
      const pattern = new RegExp(expression, "i");
      return { test: (name) => pattern.test(name) };
    } catch (error) {
      return { test: null, error: error.message };
    }
  }
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return { test: (name) => words.every((word) => name.toLowerCase().includes(word)), isEmpty: !words.length };
}
