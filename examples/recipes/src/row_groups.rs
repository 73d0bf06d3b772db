//! parquet: an `ArrowWriter` whose row group is charged while it is in memory.
//!
//! The writer keeps a row group until it is complete: by default a million rows, for each file that
//! is open. Here it is closed early if its group lacks memory: above `high`, and before a charge is
//! refused.

use std::io::Write;

use arrow_array::RecordBatch;
use memcg::{Charge, ChargeError, Group};
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;

/// Why a batch was not written. The file is as it was before.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// There is no room for the batch.
    #[error(transparent)]
    Refused(#[from] ChargeError),
    /// The writer failed.
    #[error(transparent)]
    Parquet(#[from] ParquetError),
}

/// A writer in a group.
pub struct ChargedWriter<W: Write + Send> {
    writer: ArrowWriter<W>,
    group: Group,
    /// Below the writer: its memory goes first.
    charge: Charge,
}

impl<W: Write + Send> ChargedWriter<W> {
    /// Charges `writer` to a group that is online.
    pub fn new(writer: ArrowWriter<W>, group: &Group) -> Result<ChargedWriter<W>, ChargeError> {
        Ok(ChargedWriter {
            writer,
            group: group.clone(),
            charge: group.charge(0)?,
        })
    }

    /// Writes a batch. It blocks as `Charge::grow` does, and while it writes.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), WriteError> {
        // An encoder may have as much as the batch itself, for a moment.
        let most = batch.get_array_memory_size();
        if let Err(refused) = self.charge.grow(most) {
            if self.writer.in_progress_rows() == 0 {
                return Err(refused.into());
            }
            self.close_row_group()?;
            self.charge.grow(most)?;
        }
        self.writer.write(batch)?;
        // It has grown already.
        self.charge.force_resize(self.writer.memory_size());
        if self.group.usage() > self.group.inspect().high() {
            self.close_row_group()?;
        }
        Ok(())
    }

    /// Writes the row group to the file, and gives its memory back.
    pub fn close_row_group(&mut self) -> Result<(), ParquetError> {
        self.writer.flush()?;
        self.charge.force_resize(self.writer.memory_size());
        Ok(())
    }

    /// The row groups that are complete.
    pub fn row_groups(&self) -> usize {
        self.writer.flushed_row_groups().len()
    }

    /// Writes the rest and the footer.
    pub fn close(self) -> Result<ParquetMetaData, ParquetError> {
        self.writer.close()
    }
}
