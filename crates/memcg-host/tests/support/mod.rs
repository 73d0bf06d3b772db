//! Layouts of files: a text for each, with the files of a small system. And a cache that reclaim
//! takes from.
#![allow(dead_code, reason = "each test uses some")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use memcg::{Bytes, Charge, Group, Reclaim, ReclaimContext};
use tempfile::TempDir;

/// A folder that looks like the `/` of a system.
pub(crate) struct Layout {
    root: TempDir,
    files: Vec<(PathBuf, String)>,
}

pub(crate) fn layouts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/layouts")
}

impl Layout {
    /// Writes the files of `layouts/NAME.txt`: each begins with a line `== PATH`. A path with a `/`
    /// at its end is a folder.
    pub(crate) fn new(name: &str) -> Layout {
        Layout::of(&fs::read_to_string(layouts().join(format!("{name}.txt"))).expect(name))
    }

    pub(crate) fn of(text: &str) -> Layout {
        let mut layout = Layout {
            root: tempfile::tempdir().expect("a temporary folder"),
            files: Vec::new(),
        };
        for file in text.split("== ").skip(1) {
            let (path, content) = file.split_once('\n').expect("a line with the path");
            if let Some(folder) = path.strip_suffix('/') {
                fs::create_dir_all(layout.root().join(folder)).expect("a folder");
            } else {
                layout.write(path, content);
                layout
                    .files
                    .push((layout.root().join(path), content.to_string()));
            }
        }
        layout
    }

    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    pub(crate) fn files(&self) -> Vec<(PathBuf, String)> {
        self.files.clone()
    }

    /// Replaces a file at once: a reader sees the old content or the new.
    pub(crate) fn write(&self, path: &str, content: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        let new = path.with_extension("new");
        fs::write(&new, content).expect("a file");
        fs::rename(new, path).expect("a file");
    }

    pub(crate) fn remove(&self, path: &str) {
        fs::remove_file(self.root().join(path)).expect("a file of the layout");
    }
}

/// Charges that it gives back, the last first.
pub(crate) struct Cache(Mutex<Vec<Charge>>);

impl Cache {
    /// Charges of a MiB each.
    pub(crate) fn of_mib(group: &Group, count: usize) -> Arc<Cache> {
        Arc::new(Cache(Mutex::new(
            (0..count)
                .map(|_| group.force_charge(Bytes(1 << 20)))
                .collect(),
        )))
    }
}

impl Reclaim for Cache {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        let mut held = self.0.lock().expect("no panic");
        let mut freed = 0;
        while freed < want
            && let Some(charge) = held.pop()
        {
            freed += charge.bytes();
        }
        freed
    }
}
