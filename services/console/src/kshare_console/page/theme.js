// The theme that was chosen with the switch, set before the page is drawn. It is no module, since modules run later.
(() => {
    let chosen = null;
    try {
        chosen = localStorage.getItem("kshare-theme");
    } catch {
        // Storage can be forbidden; the system's theme applies then.
    }
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
