//! A future, or anything else that is polled, that runs in a group.

use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::allocator;
use super::handle::Group;
use crate::thread::current::within;

/// Runs a future in a group: it is polled and dropped with that group as the
/// [current](Group::current) one.
///
/// ```
/// use memcg::{Group, InGroup, Limits, Runtime};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = Runtime::builder().build()?;
/// let [a, b] = ["a", "b"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
/// let path = || async {
///     tokio::task::yield_now().await;
///     Group::current().unwrap().path()
/// };
/// let task = tokio::spawn(path().in_group(&a));
/// let (here, there) = tokio::join!(path().in_group(&b), task); // on one thread, in turns
/// assert_eq!((&*here, &*there?), ("/b", "/a"));
/// assert_eq!(Group::current(), None);
/// # Ok(())
/// # }
/// ```
pub trait InGroup: Sized {
    /// Wraps the value so that it runs in `group`. A wrapper inside another one runs in its own
    /// group. It never blocks.
    ///
    /// The wrapper switches the thread's current group at each poll, and around the drop of the
    /// value. A task that is aborted is dropped outside of any poll, on whatever thread. What the
    /// value spawns has no group of its own. The wrapper is a handle on the group, so a poll counts
    /// nothing.
    fn in_group(self, group: &Group) -> Grouped<Self> {
        // Once, for all polls: the stock of a new group opens.
        allocator::catch_up_at_call(Some(group.header));
        Grouped {
            value: ManuallyDrop::new(self),
            group: group.clone(),
        }
    }
}

impl<T> InGroup for T {}

/// # Work that is handed on
impl Group {
    /// Wraps a closure so that it runs in this group wherever it is called: on a thread, in a pool of
    /// threads, in a task for blocking work. New threads, tasks and jobs have no group of their own,
    /// whatever the group of their maker.
    ///
    /// The closure is called in the group, as by [`run`](Self::run), and what it has captured is
    /// dropped there, also where it is never called. The wrapper is a handle on the group. For a
    /// future use [`in_group`](InGroup::in_group).
    ///
    /// ```
    /// use memcg::{Group, Limits, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", Limits::new())?;
    /// let path = || Group::current().map(|group| group.path());
    /// assert_eq!(query.run(|| std::thread::spawn(path).join().unwrap()), None, "it inherits nothing");
    /// assert_eq!(std::thread::spawn(query.wrap(path)).join().unwrap().as_deref(), Some("/q17"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "a closure does nothing unless it is called"]
    pub fn wrap<R, F: FnOnce() -> R>(&self, work: F) -> impl FnOnce() -> R + use<R, F> {
        let mut grouped = Some(work).in_group(self);
        move || {
            let work = grouped.value.take().expect("called once");
            grouped.group.run(work)
        }
    }
}

/// A value that runs in a group: see [`InGroup::in_group`]. It is a future if the value is one.
///
/// For any other trait of polls, such as that of a stream or of a reader,
/// [`poll_in`](Self::poll_in) is one line:
///
/// ```
/// use std::pin::{Pin, pin};
/// use std::task::{Context, Poll};
///
/// use memcg::{Group, InGroup, Limits, Runtime};
///
/// # struct Rows(u32);
/// # impl Rows {
/// #     fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<String>> {
/// #         Poll::Ready(Group::current().map(|group| group.path()))
/// #     }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = Runtime::builder().build()?;
/// let query = runtime.root().create("q17", Limits::new())?;
/// let mut rows = pin!(Rows(3).in_group(&query));
/// let next = |context: &mut Context<'_>| rows.as_mut().poll_in(|rows| rows.poll_next(context));
/// let row = std::future::poll_fn(next).await; // with the futures crate: stream::poll_fn(next) is a stream
/// assert_eq!(row.as_deref(), Some("/q17"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless they are polled"]
pub struct Grouped<T> {
    /// Pinned where the wrapper is. The drop of the wrapper drops it, in the group.
    value: ManuallyDrop<T>,
    group: Group,
}

impl<T> Grouped<T> {
    /// Returns the group in which the value runs.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Calls `poll` with the value, in the group: for traits that the crate does not know, such as
    /// `Stream`.
    #[inline]
    #[allow(unsafe_code)]
    pub fn poll_in<R>(self: Pin<&mut Self>, poll: impl FnOnce(Pin<&mut T>) -> R) -> R {
        // SAFETY: the value stays where the wrapper is: nothing moves it out, and the drop drops it
        // in place.
        let Grouped { value, group } = unsafe { self.get_unchecked_mut() };
        allocator::catch_up_at_call(None);
        // SAFETY: as above; `self` was pinned.
        let value = unsafe { Pin::new_unchecked(&mut **value) };
        within(Some(group.header.header()), || poll(value))
    }
}

impl<T: Future> Future for Grouped<T> {
    type Output = T::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T::Output> {
        self.poll_in(|value| value.poll(context))
    }
}

impl<T> Drop for Grouped<T> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        let Grouped { value, group } = self;
        // SAFETY: nothing uses the value any more.
        within(Some(group.header.header()), || unsafe {
            ManuallyDrop::drop(value)
        });
    }
}
