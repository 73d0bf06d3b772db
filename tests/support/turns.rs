//! Turns for modules whose tests want the processors for themselves: those of one module run side
//! by side, while those of another wait.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The module whose turn it is, and how many of its tests run.
static NOW: Mutex<(&str, usize)> = Mutex::new(("", 0));
static CHANGED: Condvar = Condvar::new();

/// A failed test leaves nothing half done here.
fn now() -> MutexGuard<'static, (&'static str, usize)> {
    NOW.lock().unwrap_or_else(PoisonError::into_inner)
}

/// It is the module's turn until the last of its tests drops this.
pub(crate) struct Turn(());

/// Waits until no test of another module runs. Each test begins with this, and passes
/// `module_path!()`.
pub(crate) fn turn(path: &'static str) -> Turn {
    let module = path
        .split("::")
        .nth(1)
        .expect("a module of the test program");
    let waits = |now: &mut (&str, usize)| now.0 != module && now.1 > 0;
    let mut now = CHANGED
        .wait_while(now(), waits)
        .unwrap_or_else(PoisonError::into_inner);
    *now = (module, now.1 + 1);
    Turn(())
}

impl Drop for Turn {
    fn drop(&mut self) {
        now().1 -= 1;
        CHANGED.notify_all();
    }
}
