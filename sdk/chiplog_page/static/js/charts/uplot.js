// uPlot as a module. What it publishes minified is a script, which index.html loads before all modules.

export default globalThis.uPlot;
