//! A client that takes what it is sent, or leaves it, at a connection that is paced.
//!
//! The time that counts is that for which a write is pending, by the system's clock. What has passed
//! is known from both sides: no less than between the end of one call and the begin of the next, no
//! more than from the begin of the one to the end of the other.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use memcg_tower::{ConnectionPace, PacedConnection};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tokio::io::AsyncWrite;

use super::{Rung, is_called};
use crate::script::pick;

const STEPS: usize = 14;

/// So long a write may be pending, and how much of one wait counts: two looks, of which each is an
/// eighth of that, or a millisecond.
const TIMES: [(Duration, Duration); 3] = [
    (Duration::from_millis(1), Duration::from_millis(2)),
    (Duration::from_millis(1), Duration::from_millis(2)),
    (Duration::from_millis(8), Duration::from_millis(2)),
];

/// Bytes of a write.
const BYTES: usize = 100;

/// A socket that takes what it is told to.
#[derive(Default)]
struct Takes {
    is_ready: bool,
}

impl AsyncWrite for Takes {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.is_ready {
            true => Poll::Ready(Ok(data.len())),
            false => Poll::Pending,
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
        self.poll_write(context, &all)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.is_ready {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}

/// The time that is left, at least and at most, and since when a write is pending: before and after
/// that call.
struct Twin {
    time: Duration,
    counts: Duration,
    rate: u64,
    least: Duration,
    most: Duration,
    pending: Option<(Instant, Instant)>,
}

impl Twin {
    fn new((time, counts): (Duration, Duration), rate: u64) -> Twin {
        Twin {
            time,
            counts,
            rate,
            least: time,
            most: time,
            pending: None,
        }
    }

    fn call(&mut self, polled: Poll<io::Result<usize>>, begun: Instant) {
        let ended = Instant::now();
        if let Some((before, after)) = self.pending.take() {
            let counts = |passed: Duration| passed.min(self.counts);
            let [least, most] = [
                counts(begun.saturating_duration_since(after)),
                counts(ended.saturating_duration_since(before)),
            ];
            self.least = self.least.saturating_sub(most);
            self.most = self.most.saturating_sub(least);
        }
        match polled {
            Poll::Pending => {
                assert!(!self.most.is_zero(), "its time is over, and it is no end");
                self.pending = Some((begun, ended));
            }
            Poll::Ready(Ok(bytes)) => {
                // What is taken gives time back, or all of it where no rate is asked for; that all
                // was handed on says nothing.
                let bought = match self.rate {
                    0 if bytes > 0 => self.time,
                    0 => Duration::ZERO,
                    rate => Duration::from_secs_f64(bytes as f64 / rate as f64),
                };
                for left in [&mut self.least, &mut self.most] {
                    *left = self.time.min(*left + bought);
                }
            }
            Poll::Ready(Err(error)) => {
                assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
                assert!(self.least.is_zero(), "ended, and {:?} are left", self.least);
            }
        }
    }
}

pub(super) fn live(seed: u64) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let times = pick(&mut rng, &TIMES);
    let (time, counts) = times;
    // At a rate a write buys less than a wait that counts.
    let rate = pick(&mut rng, &[0, 100_000]);
    let pace = ConnectionPace::new()
        .write_timeout(time)
        .least_rate(rate as usize);
    let mut connection: PacedConnection<Takes> = pace.connection(Takes::default());
    let rung = Arc::<Rung>::default();
    let waker = Waker::from(Arc::clone(&rung));
    let mut context = Context::from_waker(&waker);
    let mut twin = Twin::new(times, rate);
    // Some clients take next to nothing.
    let takes = pick(&mut rng, &[0.5, 0.1]);
    for _ in 0..STEPS {
        match rng.random_range(0..8) {
            // Nothing is to be sent, or the client takes nothing.
            0 => std::thread::sleep(counts * 3 / 2),
            1 => std::thread::sleep(counts / 8),
            step => {
                connection.get_mut().is_ready = rng.random_bool(takes);
                let begun = Instant::now();
                let mut connection = Pin::new(&mut connection);
                let polled = match step {
                    2 | 3 => connection.as_mut().poll_write(&mut context, &[7; BYTES]),
                    4 => {
                        let slices = [&[] as &[u8], &[7; BYTES - 40], &[7; 40]].map(IoSlice::new);
                        connection
                            .as_mut()
                            .poll_write_vectored(&mut context, &slices)
                    }
                    5 => connection
                        .as_mut()
                        .poll_shutdown(&mut context)
                        .map_ok(|()| 0),
                    _ => connection.as_mut().poll_flush(&mut context).map_ok(|()| 0),
                };
                let (has_failed, waits) =
                    (matches!(polled, Poll::Ready(Err(_))), polled.is_pending());
                twin.call(polled, begun);
                let sleeps = waits && rng.random_bool(0.2);
                assert!(!sleeps || is_called(&rung), "it waits, and nobody looks");
                if has_failed {
                    return;
                }
            }
        }
    }
}
