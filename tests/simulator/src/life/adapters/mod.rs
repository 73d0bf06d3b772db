//! What adapters hold, beside the same twin: each byte of theirs is one of a group of the life.
//!
//! Their futures are polled by hand: where their waker was called, or where the script says so. What
//! a future has waited for it has as its waker is called, so it is polled before the next look at the
//! figures.
//!
//! * `allocators`: objects, blocks, and memory that no allocator sees; `channels`: messages;
//!   `queued`: those that wait for nothing; `delayed`: those that wait for their time; `tasks`:
//!   those of tokio, which run in groups;
//! * `requests`: requests and their bodies; `connections`: their sockets, which fail; `streams`:
//!   several requests of one connection; `paced`: a client that takes what it is sent, or does not;
//!   `layered`: other layers around; `slow`: what goes by the system's clock;
//! * `containers`: vectors, strings and objects on nodes; `counted`: values in them whose code
//!   panics; `moves`: many pages, which move in part;
//! * `host`: the files of the system; `levels`: control groups in each other; `systems`: both
//!   versions of them, and all other files;
//! * `metrics`: what is read and written from outside; `sinks`: what hears of the same figures, and
//!   of events; `questions`: clients of a socket.

mod allocators;
mod channels;
mod connections;
mod containers;
mod counted;
mod delayed;
mod host;
mod layered;
mod levels;
mod metrics;
mod moves;
mod paced;
mod questions;
mod queued;
mod requests;
mod sinks;
mod slow;
mod streams;
mod systems;
mod tasks;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use memcg::{ChargeError, RuntimeBuilder};
use tokio::runtime::{Builder, Handle, Runtime};

use super::Life;
use crate::holds::Holds;
use crate::script::{Adapter, Op, Setup, Verb, What};
use crate::twin::No;

/// What threads by the system's clock do by themselves has come by then, on a machine that does much else.
const LATEST: Duration = Duration::from_secs(20);

/// What a life has of adapters.
pub(super) struct Adapters {
    /// Its clock stands still, and the life moves it.
    tokio: Runtime,
    allocators: allocators::Allocators,
    channels: Vec<channels::Channel>,
    requests: Vec<requests::Call>,
    containers: containers::Containers,
    host: Option<host::Followed>,
    pages: metrics::Pages,
    next_message: u64,
}

impl Adapters {
    pub(super) fn new() -> Self {
        let tokio = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        Adapters {
            tokio: tokio.expect("a runtime of one thread"),
            allocators: allocators::Allocators::new(),
            channels: Vec::new(),
            requests: Vec::new(),
            containers: containers::Containers::default(),
            host: None,
            pages: metrics::Pages::default(),
            next_message: 0,
        }
    }

    pub(super) fn configure(&self, setup: &Setup, builder: RuntimeBuilder) -> RuntimeBuilder {
        if setup.adapters {
            builder.node_of(Arc::clone(&self.containers.machine))
        } else {
            builder
        }
    }

    /// Tokio's clock goes on.
    pub(super) fn advance(&self, time: Duration) {
        self.tokio.block_on(tokio::time::advance(time));
    }
}

/// A waker that says whether it was called.
#[derive(Default)]
struct Rung(AtomicBool);

impl Wake for Rung {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A future of an adapter that waits.
struct Waits<T> {
    future: Pin<Box<dyn Future<Output = T> + Send>>,
    rung: Arc<Rung>,
    polls: u32,
}

impl<T: Send + 'static> Waits<T> {
    fn new(future: impl Future<Output = T> + Send + 'static) -> Self {
        Waits {
            future: Box::pin(future),
            rung: Arc::default(),
            polls: 0,
        }
    }

    fn is_rung(&self) -> bool {
        self.rung.0.load(Ordering::SeqCst)
    }

    /// Polls it once. Now and then it has another waker than before, as a task that has moved.
    fn poll(&mut self, tokio: &Handle) -> Poll<T> {
        self.polls += 1;
        renew(&mut self.rung, self.polls);
        let waker = Waker::from(Arc::clone(&self.rung));
        let _inside = tokio.enter();
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

/// Waits until it was called: what a clock or a client does comes by itself.
fn is_called(rung: &Rung) -> bool {
    let until = Instant::now() + LATEST;
    while !rung.0.swap(false, Ordering::SeqCst) {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    true
}

/// The waker of the next poll: each third one is another than that before.
fn renew(rung: &mut Arc<Rung>, polls: u32) {
    if polls.is_multiple_of(3) {
        *rung = Arc::default();
    } else {
        rung.0.store(false, Ordering::SeqCst);
    }
}

/// Nobody keeps a waker of what is over. A thread that has just called it lets it go in a moment.
fn is_let_go(rung: &Arc<Rung>) -> bool {
    let is_free = |_: u32| {
        let is_free = Arc::strong_count(rung) == 1;
        if !is_free {
            std::thread::sleep(Duration::from_millis(1));
        }
        is_free
    };
    (0..100).any(is_free)
}

impl Life {
    /// The same in a life. A thread of the runtime that asks caches has it until their turn is over,
    /// for which it may wait by the clock, which stands meanwhile.
    fn lets_go(&self, rung: &Arc<Rung>) -> bool {
        self.had_caches || is_let_go(rung)
    }

    pub(super) fn step_adapter(&mut self, op: &Op, adapter: &Adapter) {
        // They keep groups and central stocks in a way that the twin does not know.
        self.keeps = true;
        match adapter {
            Adapter::Allocate(..)
            | Adapter::Reallocate(..)
            | Adapter::Free(_)
            | Adapter::Block(..)
            | Adapter::ResizeBlock(..)
            | Adapter::FreeBlock(_)
            | Adapter::External(..)
            | Adapter::ResizeExternal(..)
            | Adapter::DropExternal(_)
            | Adapter::PanicHook(_) => self.step_allocators(op, adapter),
            Adapter::Channel(_)
            | Adapter::Send(..)
            | Adapter::SendTimeout(..)
            | Adapter::TrySend(..)
            | Adapter::SendLossy(..)
            | Adapter::Reserve(..)
            | Adapter::SendBySink(..)
            | Adapter::Queued(_)
            | Adapter::Delayed(_)
            | Adapter::Permit(..)
            | Adapter::UsePermit(..)
            | Adapter::Weak(_)
            | Adapter::Tasks(_)
            | Adapter::SendCharged(..)
            | Adapter::DropSend(..)
            | Adapter::DropWoken(_)
            | Adapter::BurstOfSends(_)
            | Adapter::TurnsOfMessages(_)
            | Adapter::Receive(_)
            | Adapter::ReceiveCharged(_)
            | Adapter::ReceiveMany(..)
            | Adapter::Close(_)
            | Adapter::DropReceiver(_)
            | Adapter::DropSenders(_)
            | Adapter::ChargeTimeout(..) => self.step_channels(op, adapter),
            Adapter::Request(..)
            | Adapter::Comes(..)
            | Adapter::ComesNoMore(..)
            | Adapter::Read(_)
            | Adapter::DropBody(_)
            | Adapter::LetGo(_)
            | Adapter::Answer(..)
            | Adapter::FailHandler(..)
            | Adapter::Take(_)
            | Adapter::Sent(_)
            | Adapter::Leave(_) => self.step_requests(op, adapter),
            Adapter::Serve(..) => self.serve_connection(op, adapter),
            Adapter::Streams(..) => self.serve_streams(op, adapter),
            Adapter::Alone(seed) => allocators::live(*seed),
            Adapter::Paced(seed) => paced::live(*seed),
            Adapter::Layered(seed) => layered::live(*seed),
            Adapter::Slow(seed) => slow::live(*seed),
            Adapter::Moves(seed) => moves::live(*seed),
            Adapter::Values(group, seed) => self.values_that_panic(op, *group, *seed),
            Adapter::HostLevels(seed) => levels::read(*seed),
            Adapter::HostSystem(seed) => systems::live(*seed),
            Adapter::HostReclaims(seed) => levels::reclaim(*seed),
            Adapter::HostUncharged(seed) => {
                levels::make_room(*seed);
                levels::built(*seed);
                match seed % 3 {
                    0 => levels::heap_stays(*seed),
                    1 => levels::high_for_a_moment(*seed),
                    _ => levels::heap_shrinks(*seed),
                }
            }
            Adapter::Ask(seed) => questions::ask(*seed),
            Adapter::Lines(seed) => {
                sinks::lines(*seed);
                metrics::layers(*seed);
                [*seed, !*seed].into_iter().for_each(metrics::rows);
                metrics::routes(*seed);
            }
            Adapter::Pages(..)
            | Adapter::PushPages(..)
            | Adapter::PopPages(..)
            | Adapter::ExtendPages(..)
            | Adapter::CutPages(..)
            | Adapter::ShrinkPages(_)
            | Adapter::SettlePages(..)
            | Adapter::DropPages(_)
            | Adapter::Store(..)
            | Adapter::Remove(_)
            | Adapter::Compact
            | Adapter::TurnOver(_)
            | Adapter::Slab(..)
            | Adapter::DropSlab(_)
            | Adapter::PerCpu(..)
            | Adapter::DropPerCpu(_)
            | Adapter::MovePages(..) => self.step_containers(op, adapter),
            Adapter::Follow(..)
            | Adapter::HostLimit(_)
            | Adapter::HostFault(_)
            | Adapter::Reconcile(..)
            | Adapter::HostWhileBusy(_)
            | Adapter::Unfollow => self.step_host(adapter),
            Adapter::Scrape(_) | Adapter::Files(_) | Adapter::WriteFile(..) => {
                self.step_metrics(op, adapter);
            }
        }
    }

    /// Something of an adapter waits for bytes.
    pub(super) fn adapters_wait(&self) -> bool {
        let of_channels = self.adapters.channels.iter();
        let of_requests = self.adapters.requests.iter();
        of_channels.flat_map(|channel| &channel.sends).count() > 0
            || of_requests.filter(|call| call.waits()).count() > 0
    }

    /// A request has ended, and its connection or its handler has what is left of it.
    pub(super) fn is_given_back(&self, key: crate::twin::Key) -> bool {
        let mut requests = self.adapters.requests.iter();
        requests.any(|call| call.has_given_back(key))
    }

    /// Polls what was woken. True: something has ended.
    pub(super) fn poll_adapters(&mut self) -> bool {
        let of_channels = self.poll_sends();
        self.poll_requests() || of_channels
    }

    /// What must hold of adapters, when all is looked at.
    pub(super) fn adapters_hold(&self) -> Holds {
        self.unowned_holds()?;
        self.containers_hold()
    }

    /// What must hold of adapters after each step.
    pub(super) fn adapters_glance(&self) -> Holds {
        self.sends_hold()?;
        self.requests_hold()
    }

    /// All of them end.
    pub(super) fn end_adapters(&mut self) {
        let op = Op(0, What::Look);
        self.forget_pages();
        self.end_host();
        self.end_channels(&op);
        self.end_requests(&op);
        self.end_containers(&op);
        self.end_allocators(&op);
        self.settle_accounts();
    }

    /// Whether an adapter that says no more than that it was refused may say so: at the beginning,
    /// or after what callbacks have done. False: the charge was made.
    fn agree_on_refusal(&mut self, group: usize, bytes: u64, is_made: bool) {
        // It may be refused behind others that wait.
        let waited = self.waiting().next().is_some() || self.adapters_wait();
        let mut allowed = vec![self.twin.admits(group, 0, bytes, None)];
        self.settle_accounts_with(|life| allowed.push(life.twin.admits(group, 0, bytes, None)));
        let is_right = if is_made {
            allowed.iter().any(Result::is_ok)
        } else {
            waited || self.cancelled || allowed.iter().any(Result::is_err)
        };
        let path = self.twin.path(group);
        assert!(
            is_right,
            "{bytes} bytes of {path}, made: {is_made}, the twin says {allowed:?}"
        );
    }

    /// Why a charge that has waited has ended without its bytes.
    fn agree_on_end(&self, group: usize, bytes: u64, error: &ChargeError) {
        let never = self.never_fitted(group, bytes);
        let is_offline = self.twin.admits(group, 0, bytes, None) == Err(No::Offline);
        let is_right = error.is_timeout()
            || error.is_offline() && is_offline
            || error.is_over_limit() && (never || !self.shared.is_quiet())
            // What a hook has noted may come later.
            || error.is_cancelled() && (self.cancelled || !self.hooks.is_empty());
        let path = self.twin.path(group);
        assert!(is_right, "{error}, {bytes} bytes of {path}");
    }

    /// Asks as a plain charge does.
    fn ask_plain(&mut self, group: usize, bytes: u64) -> super::charges::Ask {
        self.ask(group, 0, Verb::Plain, bytes)
    }

    fn tokio(&self) -> Handle {
        self.adapters.tokio.handle().clone()
    }
}
