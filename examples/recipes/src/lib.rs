//! A budget for what a service embeds, each to copy: `row_groups` (the parquet writer), `stores` (several fjall
//! stores), `partitions` (librdkafka), `bodies` (hyper).

pub mod bodies;
pub mod partitions;
pub mod row_groups;
pub mod stores;
