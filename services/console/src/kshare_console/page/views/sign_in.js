// The form to sign in with a name and password of the cluster (SASL).

import { signIn } from "../api.js";
import { h, sentence } from "../dom.js";

export function signInPage(context, signedIn) {
    context.title("Sign in");
    let failure = null;
    let isSending = false;

    async function send(event) {
        event.preventDefault();
        if (isSending) return;
        isSending = true;
        failure = null;
        const form = event.currentTarget;
        try {
            await signIn(form.elements.username.value, form.elements.password.value);
            signedIn();
        } catch (problem) {
            failure = problem;
            form.elements.password.value = "";
            form.elements.password.focus();
        }
        isSending = false;
        if (failure) draw();
    }

    function draw() {
        context.show(
            h(
                "form",
                { class: "sign-in", onsubmit: send },
                h("h1", {}, "Sign in"),
                h(
                    "p",
                    { class: "note" },
                    "With a user of the cluster. What you see and may change is what its ACLs allow.",
                ),
                h("label", { for: "username" }, "User"),
                h("input", {
                    id: "username",
                    name: "username",
                    autocomplete: "username",
                    required: true,
                    maxlength: 255,
                }),
                h("label", { for: "password" }, "Password"),
                h("input", {
                    id: "password",
                    name: "password",
                    type: "password",
                    autocomplete: "current-password",
                    required: true,
                    maxlength: 1024,
                }),
                failure
                    ? h(
                          "p",
                          { class: "failure", role: "alert" },
                          sentence(failure.message) + ".",
                          failure.status === 401 ? " Check both; passwords are the ones of SASL." : "",
                      )
                    : null,
                h("div", { class: "buttons" }, h("button", { type: "submit", class: "main" }, "Sign in")),
            ),
        );
    }

    draw();
    document.getElementById("username").focus();
}
