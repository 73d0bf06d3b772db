//! A value that is polled and is no future: a trait of streams that the library does not know.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::thread;

use memcg::{Grouped, InGroup};

use super::{groups, here, runtime};

/// As `futures_core::Stream`.
trait Stream {
    type Item;
    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>>;
}

/// The code that a crate with a trait of its own writes once.
struct StreamIn<T>(Grouped<T>);

impl<T: Stream + Unpin> Stream for StreamIn<T> {
    type Item = T::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T::Item>> {
        Pin::new(&mut self.0).poll_in(|stream| stream.poll_next(context))
    }
}

/// Says at each poll where that is, so many times.
struct Places(usize);

impl Stream for Places {
    type Item = String;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<String>> {
        let Some(left) = self.0.checked_sub(1) else {
            return Poll::Ready(None);
        };
        self.0 = left;
        Poll::Ready(Some(here()))
    }
}

fn next<S: Stream>(stream: Pin<&mut S>) -> Option<S::Item> {
    match stream.poll_next(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(item) => item,
        Poll::Pending => panic!("it is always ready"),
    }
}

#[test]
fn a_stream_runs_in_its_group() {
    let runtime = runtime();
    let [a, b] = groups(&runtime, ["a", "b"]);
    let mut stream = StreamIn(Places(2).in_group(&a));
    assert_eq!(b.run(|| next(Pin::new(&mut stream))).as_deref(), Some("/a"));
    let end = move || {
        (
            next(Pin::new(&mut stream)),
            next(Pin::new(&mut stream)),
            here(),
        )
    };
    assert_eq!(
        thread::spawn(end).join().unwrap(),
        (Some("/a".into()), None, String::new())
    );
}

/// Without a type: the wrapper is polled where it stands, and where it is pinned for good.
#[test]
fn a_poll_in_one_line() {
    let runtime = runtime();
    let [a] = groups(&runtime, ["a"]);
    let mut pinned = pin!(Places(3).in_group(&a));
    let seen: Vec<String> = std::iter::from_fn(|| pinned.as_mut().poll_in(next)).collect();
    assert_eq!(seen, ["/a"; 3]);
}
