//! The stacks of all threads of this process, from within.
//!
//! Each thread is sent a signal. Its handler only notes addresses: what it interrupts may hold the
//! lock of the allocator, or of standard error. The thread that asked makes names of them.

#[cfg(target_os = "linux")]
use std::fmt::Write as _;

/// One paragraph a thread: its number, its name, its frames, innermost first.
#[cfg(target_os = "linux")]
pub(crate) fn of_all_threads() -> String {
    let mut text = String::new();
    let mut tids: Vec<i32> = std::fs::read_dir("/proc/self/task")
        .map(|tasks| {
            tasks
                .filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok())
                .collect()
        })
        .unwrap_or_default();
    tids.sort_unstable();
    for tid in tids {
        let name =
            std::fs::read_to_string(format!("/proc/self/task/{tid}/comm")).unwrap_or_default();
        let _ = writeln!(text, "thread {tid} \"{}\":", name.trim_end());
        match linux::addresses_of(tid) {
            Some(addresses) => addresses
                .into_iter()
                .for_each(|address| describe(address, &mut text)),
            None => text.push_str("    gives no answer\n"),
        }
    }
    text
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn of_all_threads() -> String {
    "no stacks of other threads on this system\n".to_owned()
}

/// Once, before anything can go wrong.
pub(crate) fn prepare() {
    #[cfg(target_os = "linux")]
    linux::prepare();
}

#[cfg(target_os = "linux")]
fn describe(address: usize, text: &mut String) {
    let mut named = false;
    // Functions that were inlined there come first.
    backtrace::resolve(address as *mut std::ffi::c_void, |symbol| {
        let Some(name) = symbol.name() else { return };
        named = true;
        let _ = write!(text, "    {name:#}");
        if let (Some(file), Some(line)) = (symbol.filename(), symbol.lineno()) {
            let _ = write!(text, " at {}:{line}", file.display());
        }
        text.push('\n');
    });
    if !named {
        let _ = writeln!(text, "    {address:#x}");
    }
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
mod linux {
    use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    const SIGNAL: libc::c_int = libc::SIGUSR2;
    const FRAMES_MAX: usize = 96;
    /// A thread that has no processor for so long is left out.
    const ANSWER_WITHIN: Duration = Duration::from_secs(2);

    /// The memory where one thread writes its answer. Never freed: it may be late.
    struct Sheet {
        tid: libc::pid_t,
        frames: [AtomicUsize; FRAMES_MAX],
        /// Frames and one more, once they are all there.
        done: AtomicUsize,
    }

    static ASKED: AtomicPtr<Sheet> = AtomicPtr::new(std::ptr::null_mut());

    fn gettid() -> libc::pid_t {
        // SAFETY: takes nothing, and cannot fail.
        unsafe { libc::gettid() }
    }

    extern "C" fn answer(_signal: libc::c_int) {
        // SAFETY: null, or a sheet that is never freed and whose fields are shared.
        let Some(sheet) = (unsafe { ASKED.load(Ordering::Acquire).as_ref() }) else {
            return;
        };
        if sheet.tid == gettid() {
            sheet.fill();
        }
    }

    impl Sheet {
        fn fill(&self) {
            let mut len = 0;
            // SAFETY: one thread at a time is asked, and no other thread traces meanwhile but one
            // that is about to panic; what that could spoil is the text of a process that is
            // ending.
            unsafe {
                backtrace::trace_unsynchronized(|frame| {
                    self.frames[len].store(frame.ip() as usize, Ordering::Relaxed);
                    len += 1;
                    len < FRAMES_MAX
                });
            }
            self.done.store(len + 1, Ordering::Release);
        }
    }

    pub(super) fn prepare() {
        // The unwinder loads at its first use, so that use is outside a signal handler.
        backtrace::trace(|_| true);
        // SAFETY: an action of zeroes is one with an empty mask; the handler takes what a handler
        // without SA_SIGINFO is given.
        let set = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = answer as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut())
        };
        assert_eq!(set, 0, "no handler: {}", std::io::Error::last_os_error());
    }

    /// Innermost first; `None` where the thread has ended, or does not answer.
    pub(super) fn addresses_of(tid: libc::pid_t) -> Option<Vec<usize>> {
        let frames = [const { AtomicUsize::new(0) }; FRAMES_MAX];
        let sheet: &'static Sheet = Box::leak(Box::new(Sheet {
            tid,
            frames,
            done: AtomicUsize::new(0),
        }));
        if tid == gettid() {
            sheet.fill();
        } else {
            ASKED.store(std::ptr::from_ref(sheet).cast_mut(), Ordering::Release);
            // SAFETY: sends a signal that has a handler to a thread of this process, or fails.
            if unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, SIGNAL) } != 0 {
                return None;
            }
        }
        let asked = Instant::now();
        while sheet.done.load(Ordering::Acquire) == 0 {
            if asked.elapsed() > ANSWER_WITHIN {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let len = sheet.done.load(Ordering::Acquire) - 1;
        Some(
            sheet.frames[..len]
                .iter()
                .map(|frame| frame.load(Ordering::Relaxed))
                .collect(),
        )
    }
}
