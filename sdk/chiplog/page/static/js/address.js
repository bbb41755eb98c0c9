// The state of the page is in its address: #/runs?filter=lr<0.01 or #/run/RUN/curves?x=time. So every view has a link.

/** Return {path: ["run", "RUN", "curves"], query: URLSearchParams} of the address. */
export function readAddress() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { path: path.split("/").filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(query) };
}

/** Return the address of a view. query: values, or arrays; null and "" are left out. */
export function addressOf(path, query = {}) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item !== null && item !== undefined && item !== "") parameters.append(name, item);
    }
  }
  const text = parameters.toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? "?" + text : ""}`;
}

/** Change parameters of the address without a step in the history; a view keeps its state this way. */
export function setParameters(changes) {
  const { path, query } = readAddress();
  for (const [name, value] of Object.entries(changes)) {
    query.delete(name);
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item !== null && item !== undefined && item !== "") query.append(name, item);
    }
  }
  const text = query.toString();
  history.replaceState(null, "", `#/${path.map(encodeURIComponent).join("/")}${text ? "?" + text : ""}`);
}
