// Search runs in a worker, and browsers start no worker from a file: there, a hidden frame takes its place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const scope = (this.scope = frame.contentWindow);
      scope.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      const load = (address) =>
        new Promise((resolve, reject) => {
          const script = scope.document.createElement("script");
          Object.assign(script, { src: address, onload: resolve, onerror: reject });
          scope.document.body.append(script);
        });
      scope.importScripts = (...addresses) =>
        addresses.reduce((before, address) => before.then(() => load(address)), Promise.resolve());
      this.ready = load(url);
    }

    postMessage(data) {
      this.ready.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {}
  };
}
