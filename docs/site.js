/* For screen readers and the keyboard. The theme puts a <nav> with the copy button on every block of code, which is no
   landmark; and it lets a block that scrolls have the focus only where there is a mouse. */
const PICTURE = `p:has(> img[src*="terminal/"])`;
let planned = false;
const mend = () => {
  planned = false;
  for (const nav of document.querySelectorAll("nav.md-code__nav:not([role])")) nav.setAttribute("role", "none");
  for (const wide of document.querySelectorAll(`:is(pre > code, .md-typeset__scrollwrap, ${PICTURE}):not([tabindex])`))
    if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0;
};
const plan = () => {
  if (!planned) requestAnimationFrame(mend);
  planned = true;
};
new MutationObserver(plan).observe(document.body, { childList: true, subtree: true, attributeFilter: ["tabindex"] });
addEventListener("resize", plan);
plan();
