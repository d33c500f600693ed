// What the theme leaves out: scrolling by keyboard, levels of headings, names of landmarks.
document.addEventListener("DOMContentLoaded", () => {
  for (const box of document.querySelectorAll("pre, .table-wrapper")) box.tabIndex = 0;
  for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.setAttribute("aria-level", "2");
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "Site navigation");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "On this page");
});
