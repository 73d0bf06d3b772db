//! A sysfs of its own for each test.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder that is removed with its owner.
pub(crate) struct Sysfs(PathBuf);

impl Sysfs {
    /// Nothing in it.
    pub(crate) fn empty() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("memcg-numa-{}-{number}", std::process::id()));
        fs::create_dir_all(&root).expect("a folder for temporary files");
        Self(root)
    }

    /// A machine as the kernel shows it: nodes that may be there, those that are with their
    /// processors, and processors that may be there.
    pub(crate) fn machine(
        possible: &str,
        online: &str,
        nodes: &[(u16, &str)],
        processors: &str,
    ) -> Self {
        let mut sysfs = Self::empty()
            .with("devices/system/node/possible", format!("{possible}\n"))
            .with("devices/system/node/online", format!("{online}\n"))
            .with("devices/system/cpu/possible", format!("{processors}\n"));
        for (node, list) in nodes {
            sysfs = sysfs.with(
                &format!("devices/system/node/node{node}/cpulist"),
                format!("{list}\n"),
            );
        }
        sysfs
    }

    /// With this in a file, whatever was there before.
    pub(crate) fn with(self, path: &str, text: impl AsRef<[u8]>) -> Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("a folder");
        fs::write(path, text).expect("a file");
        self
    }

    pub(crate) fn without(self, path: &str) -> Self {
        let path = self.0.join(path);
        if path.is_dir() {
            fs::remove_dir_all(path)
        } else {
            fs::remove_file(path)
        }
        .expect("it was there");
        self
    }

    /// With a folder in the place of a file: what no thread can read, root included.
    pub(crate) fn with_folder(self, path: &str) -> Self {
        let sysfs = self.without(path);
        fs::create_dir(sysfs.0.join(path)).expect("a folder");
        sysfs
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }
}

impl AsRef<Path> for Sysfs {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Sysfs {
    fn drop(&mut self) {
        // It is in the folder for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}
