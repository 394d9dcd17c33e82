/** The page where a card is given: Stripe's Payment Element, or the stand-in's test cards. */
import { byId, pageData } from "../shared/dom";
import type { StripeClient } from "./stripe";
import { connectToStandIn } from "./test_cards";

interface Setup {
  publishable_key: string;
  client_secret: string;
  return_url: string;
  /** Of the stand-in; empty where Stripe itself is paid through. */
  api_url: string;
}

const FAILED = "The payment service does not answer. Nothing was taken; try again.";

function connect(setup: Setup): StripeClient | undefined {
  return setup.api_url
    ? connectToStandIn(setup.api_url, setup.publishable_key)
    : window.Stripe?.(setup.publishable_key);
}

function start(setup: Setup): void {
  const stripe = connect(setup);
  const host = byId("payment-element");
  const form = byId<HTMLFormElement>("card-form");
  if (!stripe || !host || !form) return say(FAILED);
  const elements = stripe.elements({ clientSecret: setup.client_secret });
  elements.create("payment").mount(host);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    void confirm(stripe, elements, setup);
  });
}

async function confirm(
  stripe: StripeClient,
  elements: ReturnType<StripeClient["elements"]>,
  setup: Setup,
): Promise<void> {
  const button = byId<HTMLButtonElement>("pay");
  if (button) button.disabled = true;
  say("");
  try {
    const { error } = await stripe.confirmPayment({
      elements,
      confirmParams: { return_url: setup.return_url },
      redirect: "if_required",
    });
    if (!error) return location.assign(setup.return_url);
    say(error.message ?? FAILED);
  } catch {
    say(FAILED);
  }
  if (button) button.disabled = false;
}

function say(words: string): void {
  const place = byId("card-error");
  if (!place) return;
  place.textContent = words;
  place.toggleAttribute("hidden", words === "");
}

const setup = pageData<Setup>("card-setup");
if (setup) start(setup);
