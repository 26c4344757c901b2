/* The theme puts a <nav> with the copy button on every block of code: for screen readers they are groups, not landmarks. */
new MutationObserver(() => {
  for (const nav of document.querySelectorAll("nav.md-code__nav:not([role])")) nav.setAttribute("role", "group");
}).observe(document.documentElement, { childList: true, subtree: true });
