//! Spill files of a session's queries, charged to a counter of the group.

use std::io::{self, Write};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use datafusion_common::{DataFusionError, Result};
use datafusion_execution::{DiskManager, SpillFile, SpillWriter, TempFileFactory};
use futures::Stream;
use memcg::{Charge, ChargeError, CounterKey, Group};

use crate::refusal::{Words, WriteRefused};

/// Disk managers whose files are charged to a counter of a group.
#[derive(Debug)]
pub(crate) struct Files {
    group: Group,
    counter: CounterKey,
    disks: Mutex<Vec<Disk>>,
}

/// A pair of disk managers: `counted` charges the bytes of its files, and `base` writes them.
#[derive(Debug)]
struct Disk {
    base: Arc<DiskManager>,
    counted: Arc<DiskManager>,
}

impl Files {
    pub(crate) fn new(group: &Group, counter: CounterKey) -> Result<Files> {
        group
            .counter(counter)
            .map_err(|error| DataFusionError::External(error.into()))?;
        Ok(Files {
            group: group.clone(),
            counter,
            disks: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Disk>> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk manager that counts and has `disk` write: `disk` itself, where it counts for the
    /// group or writes nothing.
    pub(crate) fn counted(&self, disk: &Arc<DiskManager>) -> Result<Arc<DiskManager>> {
        let is_known =
            |known: &&Disk| Arc::ptr_eq(&known.base, disk) || Arc::ptr_eq(&known.counted, disk);
        let known = self
            .lock()
            .iter()
            .find(is_known)
            .map(|known| Arc::clone(&known.counted));
        if let Some(known) = known.or_else(|| (!disk.tmp_files_enabled()).then(|| Arc::clone(disk)))
        {
            return Ok(known);
        }
        let factory = CountedFiles {
            disk: Arc::clone(disk),
            group: self.group.clone(),
            counter: self.counter,
        };
        let builder = DiskManager::builder()
            .with_temp_file_factory(Arc::new(factory))
            .with_max_temp_directory_size(disk.max_temp_directory_size())
            .with_max_spill_merge_fan_in(disk.max_spill_merge_fan_in());
        let counted = Arc::new(builder.build()?);
        let mut disks = self.lock();
        // Managers that no session has any more: SQL may set another one at any time.
        let gone: Vec<_> = disks
            .extract_if(.., |disk| Arc::strong_count(&disk.counted) == 1)
            .collect();
        disks.push(Disk {
            base: Arc::clone(disk),
            counted: Arc::clone(&counted),
        });
        drop(disks);
        // Without the lock: a manager that is dropped removes its folders.
        drop(gone);
        Ok(counted)
    }

    /// Returns the disk manager that writes the files of `disk`, if `disk` charges this group.
    pub(crate) fn uncounted(&self, disk: &Arc<DiskManager>) -> Option<Arc<DiskManager>> {
        self.lock()
            .iter()
            .find(|known| Arc::ptr_eq(&known.counted, disk))
            .map(|known| Arc::clone(&known.base))
    }
}

/// Factory of files whose bytes are charged to a counter of the group.
struct CountedFiles {
    disk: Arc<DiskManager>,
    group: Group,
    counter: CounterKey,
}

impl TempFileFactory for CountedFiles {
    fn create_temp_file(&self, description: &str) -> Result<Arc<dyn SpillFile>> {
        let file = self.disk.create_tmp_file(description)?;
        let group = self.group.clone();
        let counter = self.counter;
        Ok(Arc::new(CountedFile {
            file,
            bytes: Arc::new(FileBytes {
                group,
                counter,
                charge: Mutex::default(),
            }),
        }))
    }
}

/// A file and its charge. The file is dropped before its bytes are uncharged.
struct CountedFile {
    file: Arc<dyn SpillFile>,
    bytes: Arc<FileBytes>,
}

/// Bytes charged for a file.
struct FileBytes {
    group: Group,
    counter: CounterKey,
    charge: Mutex<Option<Charge>>,
}

impl FileBytes {
    /// Charges `bytes` before they are written. An error holds the refusal's text.
    fn charge(&self, bytes: usize) -> io::Result<Charge> {
        let charged = self.group.try_charge_set(&[(self.counter, bytes)]);
        charged
            .map(|[charge]| charge)
            .map_err(|error| io::Error::other(refused(&error, &self.group)))
    }

    /// Keeps the charge of bytes that were written.
    fn keep(&self, more: Charge) {
        let mut charge = self.charge.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *charge {
            // Both charges are of one counter.
            Some(charge) => _ = charge.merge(more),
            None => *charge = Some(more),
        }
    }
}

fn refused(error: &ChargeError, own: &Group) -> WriteRefused {
    WriteRefused(match error.over_limit() {
        Some(refusal) => format!("spill file: {}", Words::of(refusal, own)),
        None => format!("spill file: {error}"),
    })
}

impl SpillFile for CountedFile {
    fn path(&self) -> Option<&Path> {
        self.file.path()
    }

    fn size(&self) -> Option<u64> {
        self.file.size()
    }

    fn read_stream(&self) -> Result<Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>> {
        self.file.read_stream()
    }

    fn open_writer(&self) -> Result<Box<dyn SpillWriter>> {
        Ok(Box::new(CountedWriter {
            writer: self.file.open_writer()?,
            bytes: Arc::clone(&self.bytes),
        }))
    }
}

struct CountedWriter {
    writer: Box<dyn SpillWriter>,
    bytes: Arc<FileBytes>,
}

impl Write for CountedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut charge = self.bytes.charge(bytes.len())?;
        let written = self.writer.write(bytes)?;
        charge.shrink(bytes.len() - written);
        self.bytes.keep(charge);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl SpillWriter for CountedWriter {
    fn finish(&mut self) -> Result<()> {
        self.writer.finish()
    }
}
