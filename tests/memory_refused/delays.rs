//! The thread that ends delays of futures, where the system gives none.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use memcg::{Event, Limits, Runtime};

use crate::alone;
use crate::support::denials::deny;
use crate::support::workers::Other;

/// Above high the charge is made, and not delayed; once there are threads the next one is.
#[test]
fn without_a_thread_no_thread_is_delayed() {
    alone("delays::without_a_thread_no_thread_is_delayed", || {
        let runtime = Runtime::builder()
            .delay_max(Duration::from_secs(600))
            .build()
            .expect("defaults hold");
        let group = runtime
            .root()
            .create("q", Limits::new().high(1 << 20))
            .expect("a name");
        let held = group.force_charge(8 << 20);
        let denied = Other::spawn();
        if !denied.run(|| {
            [libc::SYS_clone3, libc::SYS_clone]
                .into_iter()
                .all(|call| deny(call, libc::EAGAIN))
        }) {
            println!("no seccomp filter here: nothing is refused");
            return;
        }
        let (charged, group) = denied.run(move || {
            let charged =
                pin!(group.charge_async(1 << 20)).poll(&mut Context::from_waker(Waker::noop()));
            (charged, group)
        });
        let Poll::Ready(Ok(charge)) = charged else {
            panic!("{charged:?}")
        };
        assert_eq!(
            (charge.bytes(), group.events().local().get(Event::High)),
            (1 << 20, 1)
        );
        println!("a thread was refused, and the charge was not");
        let mut next = pin!(group.charge_async(1 << 20));
        assert!(
            next.as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        drop((charge, held));
        assert_eq!(group.live(), 1 << 20);
    });
}
