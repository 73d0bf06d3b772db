//! A budget for what a service embeds, each to copy: `row_groups` (the parquet writer), `stores`
//! (several fjall stores), `blocks` (several SlateDB stores), `partitions` (librdkafka), `bodies`
//! (hyper).

pub mod blocks;
pub mod bodies;
pub mod partitions;
pub mod row_groups;
pub mod stores;
