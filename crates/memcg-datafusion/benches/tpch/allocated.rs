//! The process of `tpch` whose allocator charges groups.

mod child;
#[path = "../../tests/memory/queries.rs"]
mod queries;

use std::alloc::System;
use std::error::Error;

use clap::Parser;
use memcg_alloc::{LARGE_OBJECTS, MemcgAlloc};

#[global_allocator]
static ALLOCATOR: MemcgAlloc<System, LARGE_OBJECTS> = MemcgAlloc::with_threshold(System);

#[derive(Parser)]
#[command(about = "Used by tpch")]
struct Args {
    #[arg(long)]
    scale: f64,
    #[arg(long)]
    child: child::Pool,
    #[arg(long)]
    max: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    child::run(args.child, args.scale, args.max)
}
