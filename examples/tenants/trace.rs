//! Request traces: CSV with the head line `key,size`, gzipped or not.
//!
//! A trace is read whole before anything is replayed: a bad line ends the program before it has
//! done half of its work, and reading costs nothing in the figures.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::str;

use flate2::read::MultiGzDecoder;
use thiserror::Error;

/// The bytes that every gzip file begins with.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Far more than two numbers take. A longer line is cut, so that a file without line ends does not
/// end up in memory whole.
const LINE_MAX: u64 = 256;

/// The checksum stands at the end of gzip data: how much the program decodes to reach it once a line is wrong.
const DAMAGE_SOUGHT_MAX: u64 = 1 << 30;

/// Enough of a wrong line to recognise it.
const EXCERPT_CHARS: usize = 40;

/// One look-up: which entry, and how many bytes it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lookup {
    pub(crate) key: u64,
    pub(crate) size: u64,
}

/// One tenant's requests, in order.
#[derive(Debug)]
pub(crate) struct Trace {
    /// Unique among the tenants.
    pub(crate) name: String,
    /// The file that the name was taken from.
    pub(crate) file_name: String,
    pub(crate) lookups: Vec<Lookup>,
}

/// A trace that cannot be used, with the place to look at.
#[derive(Debug, Error)]
#[error("{}{}: {fault}", path.display(), line.map_or(String::new(), |line| format!(":{line}")))]
pub(crate) struct TraceError {
    path: PathBuf,
    /// From 1; a file that does not open has none.
    line: Option<u64>,
    #[source]
    fault: TraceFault,
}

/// The fault of the file, or of the line.
#[derive(Debug, Error)]
pub(crate) enum TraceFault {
    #[error("cannot open the trace: {0}; --trace takes a CSV file with the head line `key,size`")]
    Open(#[source] io::Error),
    #[error("cannot read the trace: {0}")]
    Read(#[source] io::Error),
    #[error("the file is no trace, and no gzip data either, as its name says")]
    NotGzip,
    #[error("the gzip data is damaged: {0}")]
    Damaged(#[source] io::Error),
    #[error("the file is empty, expected the head line `key,size`")]
    Empty,
    #[error("head line {0:?} where `key,size` is expected")]
    Head(String),
    #[error("no request follows the head line")]
    NoRequests,
    #[error("expected the two fields `key,size`, found {0}")]
    Fields(usize),
    #[error("{field} {text:?} is no whole number of 64 bits")]
    Number { field: &'static str, text: String },
    #[error("size 0, an entry has at least one byte")]
    SizeZero,
}

impl Trace {
    /// Reads the first `requests` of the file, or all.
    pub(crate) fn read(path: &Path, requests: Option<u64>) -> Result<Self, TraceError> {
        let fail = |line, fault| TraceError { path: path.to_path_buf(), line, fault };

        let mut lines = Lines::open(path).map_err(|fault| fail(None, fault))?;
        let cap = requests.and_then(|cap| usize::try_from(cap).ok()).unwrap_or(usize::MAX);
        match lookups(&mut lines, cap) {
            Ok(lookups) => {
                let file_name = stem(path);
                Ok(Self { name: file_name.clone(), file_name, lookups })
            }
            Err(fault) => {
                let line = lines.number;
                // Damaged data may decode to text that is no trace: the damage is what the user has to know.
                let fault = match lines.damage().unwrap_or(fault) {
                    TraceFault::Head(_) if !lines.is_gzip && is_named_gzip(path) => TraceFault::NotGzip,
                    fault => fault,
                };
                Err(fail(Some(line), fault))
            }
        }
    }
}

/// The look-ups that follow the head line, at most `cap`.
fn lookups(lines: &mut Lines, cap: usize) -> Result<Vec<Lookup>, TraceFault> {
    match lines.next()? {
        Some(head) => check_head(head)?,
        None => {
            lines.number = 1;
            return Err(TraceFault::Empty);
        }
    }
    let mut lookups = Vec::new();
    while lookups.len() < cap
        && let Some(line) = lines.next()?
    {
        lookups.push(lookup(line)?);
    }
    if lookups.is_empty() { Err(TraceFault::NoRequests) } else { Ok(lookups) }
}

/// A file's lines, counted. The `csv` crate counts records, and blank lines and `\r\n` put it off;
/// two numbers need no quoting.
struct Lines {
    source: BufReader<Box<dyn Read>>,
    is_gzip: bool,
    /// The line that was read last, or that the file ended or failed at; from 1.
    number: u64,
    text: Vec<u8>,
}

impl Lines {
    /// Reads through a decoder where the file begins as gzip data does.
    fn open(path: &Path) -> Result<Self, TraceFault> {
        let mut file = File::open(path).map_err(TraceFault::Open)?;
        let mut magic = Vec::with_capacity(GZIP_MAGIC.len());
        // Read and put back rather than sought: a pipe is a trace, too.
        file.by_ref().take(GZIP_MAGIC.len() as u64).read_to_end(&mut magic).map_err(TraceFault::Open)?;
        let is_gzip = magic == GZIP_MAGIC;
        let whole = BufReader::new(Cursor::new(magic).chain(file));
        let source: Box<dyn Read> = if is_gzip { Box::new(MultiGzDecoder::new(whole)) } else { Box::new(whole) };
        Ok(Self { source: BufReader::new(source), is_gzip, number: 0, text: Vec::new() })
    }

    /// The next line that is not blank, without the blanks around it.
    fn next(&mut self) -> Result<Option<&[u8]>, TraceFault> {
        loop {
            self.text.clear();
            self.number += 1;
            match self.source.by_ref().take(LINE_MAX).read_until(b'\n', &mut self.text) {
                Ok(0) => return Ok(None),
                Ok(_) if self.text.trim_ascii().is_empty() => {}
                Ok(_) => return Ok(Some(self.text.trim_ascii())),
                Err(error) => return Err(self.fault(error)),
            }
        }
    }

    /// The fault of gzip data, if any, in as much of the rest as is worth a look.
    fn damage(&mut self) -> Option<TraceFault> {
        let rest = &mut self.source.by_ref().take(if self.is_gzip { DAMAGE_SOUGHT_MAX } else { 0 });
        let error = io::copy(rest, &mut io::sink()).err()?;
        Some(self.fault(error))
    }

    /// The decoder's complaints are of other kinds than the file system's.
    fn fault(&self, error: io::Error) -> TraceFault {
        match error.kind() {
            ErrorKind::InvalidData | ErrorKind::InvalidInput | ErrorKind::UnexpectedEof if self.is_gzip => {
                TraceFault::Damaged(error)
            }
            _ => TraceFault::Read(error),
        }
    }
}

/// The bytes decide how a file is read; its name helps to tell what may be wrong with it.
fn is_named_gzip(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"))
}

/// The file's name without what says how it is packed.
fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let unpacked = name.strip_suffix(".gz").unwrap_or(&name);
    unpacked.strip_suffix(".csv").unwrap_or(unpacked).to_string()
}

/// The head line tells a trace from any other file.
fn check_head(line: &[u8]) -> Result<(), TraceFault> {
    if line.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).eq([b"key".as_slice(), b"size"]) {
        return Ok(());
    }
    Err(TraceFault::Head(excerpt(line)))
}

/// One line as a look-up.
fn lookup(line: &[u8]) -> Result<Lookup, TraceFault> {
    let mut fields = line.split(|&byte| byte == b',');
    let (Some(key), Some(size), None) = (fields.next(), fields.next(), fields.next()) else {
        return Err(TraceFault::Fields(line.split(|&byte| byte == b',').count()));
    };
    let lookup = Lookup { key: number("key", key)?, size: number("size", size)? };
    if lookup.size == 0 { Err(TraceFault::SizeZero) } else { Ok(lookup) }
}

/// A field as a number.
fn number(field: &'static str, bytes: &[u8]) -> Result<u64, TraceFault> {
    let bytes = bytes.trim_ascii();
    let parsed = str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| TraceFault::Number { field, text: excerpt(bytes) })
}

/// The beginning of what may be no text at all.
fn excerpt(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    match text.char_indices().nth(EXCERPT_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into_owned(),
    }
}
