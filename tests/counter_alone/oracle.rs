//! The naive twin of the properties.

#[path = "../properties/oracle/counters/mod.rs"]
pub(crate) mod counters;

use memcg::CounterConfig;

/// Counters alone have nothing to declare.
pub(crate) fn declaring(config: CounterConfig) -> CounterConfig {
    config
}
#[path = "../properties/oracle/record.rs"]
pub(crate) mod record;
#[path = "../support/workers.rs"]
pub(crate) mod workers;
