// Dark or light: the choice of the reader, else that of the system.

const scheme = matchMedia("(prefers-color-scheme: dark)");

/** Return true while the page is dark. */
export function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : scheme.matches;
}

/** Change between dark and light, for this browser. */
export function turnTheme() {
  const root = document.documentElement;
  root.dataset.theme = isDark() ? "light" : "dark";
  localStorage.setItem("chiplog-theme", root.dataset.theme);
  document.dispatchEvent(new Event("themechange"));
}

/** Restore the theme that was chosen in this browser. */
export function restoreTheme() {
  const theme = localStorage.getItem("chiplog-theme");
  if (theme) document.documentElement.dataset.theme = theme;
}

/** Call a function after each change: a canvas is drawn again. Return a function that ends this. */
export function onTheme(action) {
  scheme.addEventListener("change", action);
  document.addEventListener("themechange", action);
  return () => {
    scheme.removeEventListener("change", action);
    document.removeEventListener("themechange", action);
  };
}
