//! The load that is generated where no trace is given: keys by a Zipf law.
//!
//! The tenants take their shape from five production caches: J. Yang, Y. Yue, K. V. Rashmi,
//! "A large scale analysis of hundreds of in-memory cache clusters at Twitter", OSDI 2020;
//! figures from github.com/twitter/cache-trace, stat/2020Mar.md, CC-BY-4.0.

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand_distr::{Distribution, Zipf};

use crate::cache::scramble;
use crate::trace::{Request, Trace};

/// Together a few seconds of work.
const REQUESTS_DEFAULT: u64 = 400_000;

/// Keys that a tenant asks for: enough that no budget of the size of the default holds them all.
const KEYS: f64 = 131_072.0;

/// The shape of one tenant's load.
struct Cluster {
    name: &'static str,
    /// Exponent of the Zipf law: the larger, the fewer keys draw most requests.
    alpha: f64,
    /// Key and value together, on average.
    bytes: u64,
}

const CLUSTERS: [Cluster; 5] = [
    Cluster { name: "cluster04", alpha: 1.1004, bytes: 67 + 2_439 },
    Cluster { name: "cluster13", alpha: 0.4565, bytes: 44 + 4_266 },
    Cluster { name: "cluster24", alpha: 1.3726, bytes: 32 + 699 },
    Cluster { name: "cluster29", alpha: 1.2323, bytes: 36 + 799 },
    Cluster { name: "cluster53", alpha: 1.2061, bytes: 36 + 9_213 },
];

/// One trace for each cluster; the same seed makes the same traces.
pub(crate) fn generate(seed: u64, requests: Option<u64>) -> Vec<Trace> {
    let requests = requests.unwrap_or(REQUESTS_DEFAULT);
    CLUSTERS.iter().zip(0..).map(|(cluster, index)| cluster.trace(seed, index, requests)).collect()
}

impl Cluster {
    fn trace(&self, seed: u64, index: u64, requests: u64) -> Trace {
        let zipf = Zipf::new(KEYS, self.alpha).expect("the table above holds valid exponents");
        let mut random = StdRng::seed_from_u64(scramble(seed, index));
        let draw = |_| {
            // A rank from 1 to KEYS, whole.
            let key = zipf.sample(&mut random) as u64;
            Request { key, size: self.size(key) }
        };
        let name = self.name.to_string();
        Trace { file_name: name.clone(), name, requests: (0..requests).map(draw).collect() }
    }

    /// A key's size never changes; sizes spread evenly from half to one and a half times the mean.
    fn size(&self, key: u64) -> u64 {
        self.bytes / 2 + scramble(key, self.bytes) % self.bytes
    }
}
