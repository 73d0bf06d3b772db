//! Open files of tenants. Each takes one descriptor and one buffer, which are charged as one:
//! descriptors are a counter beside memory, with a limit for each tenant and one for the process.
//!
//! ```text
//! cargo run --example descriptors
//! ```

use std::error::Error;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use memcg::{Charge, ChargeError, CounterKey, Group, Limit, Limits, Runtime};

const BUFFER: usize = 16 * 1024;

#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error(transparent)]
    Refused(#[from] ChargeError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Opens files for one tenant.
struct Files {
    tenant: Group,
    descriptors: CounterKey,
}

/// An open file. It is closed first and uncharged then: fields are dropped in their order.
struct TenantFile {
    reader: BufReader<File>,
    _charges: [Charge; 2],
}

impl Files {
    fn open(&self, path: impl AsRef<Path>) -> Result<TenantFile, OpenError> {
        let charges = self
            .tenant
            .charge_set(&[(CounterKey::MEMORY, BUFFER), (self.descriptors, 1)])?;
        let file = File::open(path)?;
        Ok(TenantFile {
            reader: BufReader::with_capacity(BUFFER, file),
            _charges: charges,
        })
    }

    fn count(&self) -> u64 {
        self.tenant
            .counter(self.descriptors)
            .map_or(0, |counter| counter.live())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut builder = Runtime::builder();
    let descriptors = builder.counter("descriptors", memcg::Unit::Bytes);
    let runtime = builder.max(Limit::mib(1)).build()?;
    let root = runtime.root();
    root.counter(descriptors)?.set_max(5)?;
    let [acme, globex] = ["acme", "globex"].map(|name| root.create(name, Limits::new()));
    let [acme, globex] = [acme?, globex?].map(|tenant| Files {
        tenant,
        descriptors,
    });
    acme.tenant.counter(descriptors)?.set_max(3)?;
    globex.tenant.counter(descriptors)?.set_max(4)?;

    let path = std::env::current_exe()?;
    let mut open = Vec::new();
    for files in [&acme, &globex] {
        for _ in 0..4 {
            match files.open(&path) {
                Ok(file) => open.push(file),
                Err(OpenError::Refused(refused)) => println!("{refused}"),
                Err(OpenError::Io(error)) => return Err(error.into()),
            }
        }
    }
    println!(
        "open: acme {}, globex {}, buffers {}",
        acme.count(),
        globex.count(),
        root.live()
    );

    let mut start = [0; 1];
    open[0].reader.read_exact(&mut start)?;
    open.truncate(4); // closes one of globex
    println!(
        "without one of globex: acme {}, globex {}",
        acme.count(),
        globex.count()
    );
    assert!(matches!(globex.open("no such file"), Err(OpenError::Io(_))));
    assert_eq!(
        globex.count(),
        1,
        "a file that is not opened keeps no charge"
    );
    drop(open);
    let all = root.counter(descriptors)?;
    println!(
        "all closed: peak {}, refused {}, live {}",
        all.peak(),
        all.refused_count(),
        all.live()
    );
    Ok(())
}
