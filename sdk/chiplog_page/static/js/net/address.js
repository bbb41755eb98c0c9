// The state of the page is in its address: #/runs?filter=lr<0.01 or #/run/RUN/curves?x=time. So every view has a link.

/** Return {path: ["run", "RUN", "curves"], query: URLSearchParams} of the address. */
export function readAddress() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { path: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(query) };
}

/** Return a decoded part; as it is if a person has cut or mistyped it. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Return parameters of an address or a request. Values may be arrays; null, undefined and "" are left out. */
export function parametersOf(query) {
  if (query instanceof URLSearchParams) return query;
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item !== null && item !== undefined && item !== "") parameters.append(name, item);
    }
  }
  return parameters;
}

/** Return the address of a view. query: as of `parametersOf`. */
export function addressOf(path, query = {}) {
  return written(path, parametersOf(query));
}

/** Change parameters of the address without a step in the history; a view keeps its state this way. */
export function setParameters(changes) {
  const { path, query } = readAddress();
  for (const name of Object.keys(changes)) query.delete(name);
  for (const [name, value] of parametersOf(changes)) query.append(name, value);
  history.replaceState(null, "", written(path, query));
}

const WHOLE_MAX = Number.MAX_SAFE_INTEGER; // greater whole numbers are not exact here

/** Return the whole number that a parameter or an input has; null if it has none. */
export function wholeOf(text) {
  return /^-?\d{1,19}$/.test(text ?? "") ? Math.min(Math.max(Number(text), -WHOLE_MAX), WHOLE_MAX) : null;
}

function written(path, parameters) {
  const text = parameters.toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? "?" + text : ""}`;
}
