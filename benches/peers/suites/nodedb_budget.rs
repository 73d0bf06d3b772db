use std::sync::Arc;

pub use crate::on_memcg::Budget;

