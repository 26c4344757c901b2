/* Search where the pages are opened from a disk: a browser starts no worker from file://, so what the worker would do is
   done in a hidden frame. docs/hooks.py puts this in the place of a script that the theme would fetch from elsewhere. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<script>
        const owner = frameElement.owner;
        self.postMessage = (data) => owner.receive(data);
        self.importScripts = () => {};
      <\/script><script src="${new URL(address, location.href)}"><\/script>`;
      frame.owner = this;
      frame.addEventListener("load", () => {
        this.ready = frame.contentWindow;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      });
      document.body.append(frame);
    }

    postMessage(data) {
      if (this.ready) this.ready.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }

    receive(data) {
      this.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {}
  };
}
