//! The asymmetric barrier: *light* on the path that runs a billion times, *heavy* on the one that
//! runs rarely.
//!
//! Both stand for `fence(SeqCst)`. Take a thread that stores A, runs *light* and loads B, and
//! another that stores B, runs *heavy* and loads A: at least one of the two sees the other's store.
//! *light* only keeps the compiler from reordering; *heavy* makes the kernel run a full barrier on
//! every processor that runs a thread of this process (`membarrier(2)`, private expedited), so each
//! of their light sides lies wholly before or wholly after it.
//!
//! Three modes: [`BarrierState::Membarrier`] as said; [`BarrierState::Fence`] with a real fence on
//! both sides, where the system call does not exist or is not wanted; [`BarrierState::Degraded`]
//! once a heavy barrier has failed later (a seccomp filter): drains take nothing any more, owners
//! give their credit back themselves.

use super::stat_atomic::{AtomicBool, AtomicU64};
use super::{Ordering, fence};

/// The barrier pair that a tree of counters asks for: how a charge and a drain on another thread
/// see each other.
///
/// A service that isolates processors chooses `Fence`: each charge pays a fence (about 5 ns) and no
/// drain ever interrupts a processor.
///
/// ```
/// use memcg::{CounterConfig, PageCounter};
/// use memcg::barrier::{BarrierMode, BarrierState};
///
/// let quiet = CounterConfig::new().barrier(BarrierMode::Fence);
/// assert_eq!(PageCounter::root(quiet).barrier(), BarrierState::Fence);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BarrierMode {
    /// `membarrier(2)`. Where the system lacks it the counters run on `Fence`, and say so in
    /// [`BarrierState`].
    #[default]
    Auto,
    /// A fence on both sides, no system call.
    Fence,
}

/// The barrier pair that a tree of counters runs on.
///
/// ```
/// use memcg::{CounterConfig, PageCounter};
/// use memcg::barrier::BarrierState;
///
/// let machine = PageCounter::root(CounterConfig::new());
/// match machine.barrier() {
///     BarrierState::Membarrier => {}
///     BarrierState::Fence => eprintln!("no membarrier(2) here: charges pay a fence"),
///     other => unreachable!("{other:?}: no barrier has run yet"),
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BarrierState {
    /// Charges pay no fence; a drain calls `membarrier(2)`.
    Membarrier,
    /// Charges and drains pay a fence.
    Fence,
    /// `membarrier(2)` worked at the start and has failed since. Limits still hold, but credit of
    /// other threads can no longer be drained: only the threads themselves give it back.
    Degraded,
}

/// A heavy barrier was asked for and the system refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BarrierFailed;

/// The pair as one tree uses it.
#[derive(Debug)]
pub(crate) struct Barrier {
    /// Charges run [`light_fence`] instead of [`light`]. Fixed at creation: the hot path chose its
    /// side by it.
    pub(crate) fenced: bool,
    degraded: AtomicBool,
    /// Heavy barriers run.
    pub(crate) heavies: AtomicU64,
}

impl Barrier {
    pub(crate) fn new(mode: BarrierMode) -> Self {
        let fenced = match mode {
            BarrierMode::Fence => true,
            BarrierMode::Auto => !membarrier::register(),
        };
        Barrier {
            fenced,
            degraded: AtomicBool::new(false),
            heavies: AtomicU64::new(0),
        }
    }

    pub(crate) fn state(&self) -> BarrierState {
        if self.degraded.load(Ordering::Relaxed) {
            BarrierState::Degraded
        } else if self.fenced {
            BarrierState::Fence
        } else {
            BarrierState::Membarrier
        }
    }

    /// The rare side. On an error nothing may be assumed about the other threads.
    pub(crate) fn heavy(&self) -> Result<(), BarrierFailed> {
        self.heavies.fetch_add(1, Ordering::Relaxed);
        if self.fenced {
            // E2, E3, E5, E17: the heavy side of all of them.
            fence(Ordering::SeqCst);
            return Ok(());
        }
        membarrier::heavy().inspect_err(|_| self.degraded.store(true, Ordering::Relaxed))
    }
}

/// The frequent side, as [`Barrier::fenced`] says.
#[inline(always)]
pub(crate) fn light_side(fenced: bool) {
    if fenced { light_fence() } else { light() }
}

/// The frequent side: an empty instruction that the compiler moves no memory access across.
#[inline(always)]
#[allow(unsafe_code)]
fn light() {
    #[cfg(any(loom, shuttle))]
    super::model::fence_of_pair();
    // E2, E3, E5, E17: the light side of all of them.
    #[cfg(any(miri, memcg_fence))]
    fence(Ordering::SeqCst);
    #[cfg(not(any(
        loom,
        shuttle,
        miri,
        memcg_fence,
        not(any(target_arch = "x86_64", target_arch = "aarch64"))
    )))]
    // SAFETY: no instruction is emitted; without `nomem` the block is a compiler barrier, which is
    // all it is for.
    unsafe {
        core::arch::asm!("", options(nostack, preserves_flags));
    }
}

/// The frequent side of the fence mode. Out of line, so that the hot path holds no fence
/// instruction.
#[cold]
#[inline(never)]
fn light_fence() {
    // E2, E3, E5, E17: as in `light`.
    fence(Ordering::SeqCst);
}

#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(loom, shuttle, miri, memcg_fence))
))]
mod membarrier {
    use std::sync::OnceLock;

    use super::BarrierFailed;

    #[allow(unsafe_code, reason = "the C library has no function for it")]
    fn membarrier(command: libc::c_int) -> bool {
        const NO_FLAGS: libc::c_int = 0;
        // SAFETY: the call reads and writes no memory of the program, and fails where the kernel
        // does not know the command.
        unsafe { libc::syscall(libc::SYS_membarrier, command, NO_FLAGS, 0 as libc::c_int) == 0 }
    }

    /// Registers the process, once. Inherited by fork, so a child may go on; not by exec, which
    /// runs this anew.
    pub(super) fn register() -> bool {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        *REGISTERED.get_or_init(|| membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED))
    }

    pub(super) fn heavy() -> Result<(), BarrierFailed> {
        if membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
            Ok(())
        } else {
            Err(BarrierFailed)
        }
    }
}

/// Everywhere else, and under the tools that only know fences, both sides are fences.
#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(loom, shuttle, miri, memcg_fence))
)))]
mod membarrier {
    use super::BarrierFailed;
    #[cfg(any(loom, shuttle))]
    use crate::sync::model::fence_of_pair;

    #[cfg(not(any(loom, shuttle)))]
    fn fence_of_pair() {
        // E2, E3, E5, E17: as in `Barrier::heavy`.
        super::fence(super::Ordering::SeqCst);
    }

    pub(super) fn register() -> bool {
        // `light` is a fence in the tools, so the heavy side may be one; elsewhere the mode must be
        // `Fence`.
        cfg!(any(loom, shuttle, miri, memcg_fence))
    }

    pub(super) fn heavy() -> Result<(), BarrierFailed> {
        // Mutation: e2-drain-without-heavy
        fence_of_pair();
        Ok(())
    }
}

/// The two sides of the barrier pair alone, to test a machine with: example `litmus` does.
///
/// A thread stores, calls [`light`](litmus::light) and loads; another stores, calls
/// [`heavy`](litmus::heavy) and loads. At least one of the two loads then sees the other thread's
/// store.
///
/// ```
/// use memcg::barrier::litmus;
///
/// litmus::light();
/// assert!(litmus::heavy() || cfg!(not(target_os = "linux")), "this kernel has no membarrier");
/// ```
pub mod litmus {
    /// The frequent side: keeps the compiler from moving a load before a store, and costs no
    /// instruction.
    #[inline(always)]
    pub fn light() {
        super::light();
    }

    /// The rare side: interrupts the processors that run this process. Returns false where the
    /// system has no such call.
    pub fn heavy() -> bool {
        super::membarrier::register() && super::membarrier::heavy().is_ok()
    }

    /// The rare side without its system call: a test that uses it must see both loads miss.
    pub fn heavy_removed() {
        super::light();
    }
}
