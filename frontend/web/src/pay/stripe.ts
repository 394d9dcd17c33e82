/** The part of Stripe.js that the payment page uses. */

export interface PaymentElement {
  mount(host: HTMLElement): void;
}

export interface Elements {
  create(kind: "payment"): PaymentElement;
}

export interface Confirmation {
  error?: { message?: string };
}

export interface StripeClient {
  elements(options: { clientSecret: string }): Elements;
  confirmPayment(options: {
    elements: Elements;
    confirmParams: { return_url: string };
    redirect: "if_required";
  }): Promise<Confirmation>;
}

declare global {
  interface Window {
    /** Stripe's own script, where the market takes real cards. */
    Stripe?: (publishableKey: string) => StripeClient;
  }
}
