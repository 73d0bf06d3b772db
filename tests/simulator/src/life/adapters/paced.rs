//! A client that takes what it is sent, or leaves it, at a connection that is paced.
//!
//! The time that counts is that for which a write is pending, by the system's clock. What has passed
//! is known from both sides: no less than between the end of one call and the begin of the next, no
//! more than from the begin of the one to the end of the other.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use memcg_tower::{ConnectionPace, PacedConnection};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tokio::io::AsyncWrite;

const STEPS: usize = 14;

/// A write may be pending for so long. Of one wait twice this counts at most.
const TIME: Duration = Duration::from_millis(1);

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

/// The time that has counted, and since when a write is pending: before and after that call.
#[derive(Default)]
struct Twin {
    least: Duration,
    most: Duration,
    pending: Option<(Instant, Instant)>,
}

impl Twin {
    fn call(&mut self, polled: Poll<io::Result<usize>>, begun: Instant) {
        let ended = Instant::now();
        if let Some((before, after)) = self.pending.take() {
            self.least += begun.saturating_duration_since(after).min(TIME * 2);
            self.most += ended.saturating_duration_since(before);
        }
        match polled {
            Poll::Pending => {
                assert!(
                    self.least < TIME,
                    "pending for {:?}, and no end",
                    self.least
                );
                self.pending = Some((begun, ended));
            }
            Poll::Ready(Ok(bytes)) => {
                // What is taken gives all of the time back; that all was handed on says nothing.
                if bytes > 0 {
                    *self = Twin::default();
                }
            }
            Poll::Ready(Err(error)) => {
                assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
                assert!(self.most >= TIME, "ended, and pending for {:?}", self.most);
            }
        }
    }
}

pub(super) fn live(seed: u64) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let pace = ConnectionPace::new().write_timeout(TIME).least_rate(0);
    let mut connection: PacedConnection<Takes> = pace.connection(Takes::default());
    let mut context = Context::from_waker(Waker::noop());
    let mut twin = Twin::default();
    for _ in 0..STEPS {
        match rng.random_range(0..8) {
            // Nothing is to be sent, or the client takes nothing.
            0 => std::thread::sleep(TIME * 3),
            1 => std::thread::sleep(TIME / 4),
            step => {
                connection.get_mut().is_ready = rng.random();
                let begun = Instant::now();
                let mut connection = Pin::new(&mut connection);
                let polled = match step {
                    2 | 3 => connection.as_mut().poll_write(&mut context, &[7; 100]),
                    4 => {
                        let slices = [&[] as &[u8], &[7; 60], &[7; 40]].map(IoSlice::new);
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
                let has_failed = matches!(polled, Poll::Ready(Err(_)));
                twin.call(polled, begun);
                if has_failed {
                    return;
                }
            }
        }
    }
}
