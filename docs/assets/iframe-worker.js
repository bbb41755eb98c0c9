// Browsers start no worker for a page that was opened as a file, and the search of the site is a worker. There it runs in a
// hidden frame instead. MkDocs' plugin `offline` loads such a script from a network unless the site has one of this name.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = []; // messages for the script while it loads
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.addEventListener("load", () => this.start(url), {once: true});
      document.body.append(this.frame);
    }

    start(url) {
      const scope = this.frame.contentWindow;
      const deliver = scope.postMessage.bind(scope);
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", {data: structuredClone(data)}));
      const script = scope.document.createElement("script");
      script.src = url;
      script.addEventListener("load", () => {
        this.deliver = (data) => deliver(data, "*"); // a file has no origin to name
        this.waiting.splice(0).forEach(this.deliver);
      });
      scope.document.head.append(script);
    }

    postMessage(data) {
      if (this.deliver) this.deliver(data);
      else this.waiting.push(data);
    }

    terminate() {
      this.frame.remove();
    }
  };
}
