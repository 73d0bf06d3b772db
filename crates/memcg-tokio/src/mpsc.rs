//! A channel bounded by the bytes of a group: tokio's unbounded channel carries the messages, and
//! the group's charges are its semaphore. A message and its charge travel as one value, so a
//! message that is dropped gives its bytes back. The bytes of a received message go to the first
//! sender that waits, as `waiters` says, or stay in the group's central stock for the next send. What
//! a sender may drop again is in a list beside the queue, as `droppable` says.

mod blocking;
mod droppable;
mod error;
#[cfg(feature = "tokio-util")]
mod poll_sender;
mod queue;
mod receiver;
mod sender;
mod slots;
mod waiters;

pub use error::SendError;
#[cfg(feature = "tokio-util")]
pub use poll_sender::PollSender;
pub use receiver::Receiver;
pub use sender::{DropPolicy, LossySender, OwnedPermit, Sender, WeakSender};

use std::sync::Arc;

use self::waiters::Waiters;
use memcg::CentralStock;
use memcg::{Group, Weigh};

/// Creates a channel whose messages are charged to `group` from the send to the receive. The
/// group's max, and those of its ancestors, bound it: a send that does not fit waits.
///
/// A message is charged for [the heap behind it](Weigh) and its [`message_overhead`], so that messages
/// without heap are bounded, too. Give the channel a group of its own, with a max; several channels in
/// one group share its bytes. A channel of a group without any max above it is unbounded.
///
/// The bytes of a received message are [credit](memcg::CentralStock) for the next send.
/// They are part of the group's usage, not of what it holds ([`live`](Group::live)), and any charge
/// that lacks them gets them.
///
/// **Fair**: senders that wait are served first come, first served. All of them have one place in
/// the group's line, so [`waiting_count`](Group::waiting_count) counts them as 1. The bytes of a
/// received message go to the first sender at once if no other charge waits at the group or above.
/// Otherwise the channel has its turn among these charges, one message at a time. A
/// [`try_send`](Sender::try_send) and other charges may pass the first sender, until together they
/// have taken as many bytes as it asks for. If no sender waits yet, a send that finds no room lets
/// other tasks run twice before it waits. The messages of one sender arrive in their order.
///
/// **Cancel-safe**: a send that is dropped before it is done leaves the line, and its message is
/// dropped, as with tokio's channel. With [`Sender::reserve`] the message stays with the caller. A
/// receive that is dropped loses nothing.
///
/// **Closes as tokio's**: the receiver gets what was sent before the last sender went, and then
/// `None`. Where the receiver closes or goes, sends that wait and all later ones return their
/// message.
///
/// # Memory
///
/// The queue is made of blocks of 32 places, of which a channel that is empty keeps up to four.
/// They are charged to no group: a place has at most 64 bytes, so they are at most 9 KiB. A message
/// of which the value and its charge are larger is on the heap, which costs an allocation, and is
/// charged whole from its send to its receive.
///
/// The list of senders that wait has 56 bytes for each, charged to no group. A list that has grown
/// beyond 16 senders is freed when none waits.
///
/// A message that a [`LossySender`] may drop again costs its place twice, and its place in the queue
/// stays until the receiver has passed it, or another such message has taken it over.
///
/// A sender that waits for room while it holds other bytes of the same group may wait for itself:
/// use [`Sender::send_timeout`], or a group for the channel alone.
///
/// This call takes the tree's lock for the group's [central stock](memcg::CentralStock),
/// and may wait for a drain. So does the receiver's drop, or its first answer that no message will
/// come.
///
/// ```
/// use memcg::{Limit, Limits, Runtime};
/// use memcg_tokio::channel;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let budget = Runtime::builder().max(Limit::gib(2)).build()?;
/// let queue = budget.root().create("queue", Limits::new().max(Limit::mib(1)))?;
/// let (rows, mut batches) = channel::<Vec<u8>>(&queue);
/// let producer = tokio::spawn(async move {
///     for _ in 0..10 {
///         rows.send(vec![0; 400_000]).await?; // two fit
///     }
///     Ok::<(), memcg_tokio::SendError<Vec<u8>>>(())
/// });
/// let mut received = 0;
/// while let Some(batch) = batches.recv().await {
///     received += batch.len();
///     assert!(queue.live() <= 1 << 20);
/// }
/// producer.await??;
/// assert_eq!((received, queue.live()), (4_000_000, 0));
/// # Ok(())
/// # }
/// ```
pub fn channel<T: Weigh>(group: &Group) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = queue::queue();
    let stock = CentralStock::of(group);
    let waiters = Waiters::new();
    (
        Sender::new(sender, stock.clone(), Arc::clone(&waiters)),
        Receiver::new(receiver, stock, waiters),
    )
}

/// Returns the bytes that a message of this type costs beside [the heap behind it](Weigh): its place in
/// the queue, and so its own size. A message above [64 bytes](channel#memory) is on the heap, with a pointer in its place.
///
/// ```
/// use memcg::Weigh;
/// use memcg_tokio::message_overhead;
///
/// // A group for at most 100 lines of 80 bytes.
/// let max = 100 * (message_overhead::<String>() + "x".repeat(80).heap_bytes());
/// # assert!(max > 100 * (80 + size_of::<String>()));
/// ```
pub const fn message_overhead<T>() -> usize {
    queue::message_size::<T>()
}
