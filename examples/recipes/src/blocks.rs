//! SlateDB: one budget over the write buffers of several stores, and the block cache that they
//! share.
//!
//! Each cached block is charged, and each entry until it is in the object store. If a store lacks
//! room, the tree has blocks dropped, and buffers written. No size is set for either.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lru::LruCache;
use memcg::{
    Charge, ChargeError, Group, OnFull, Reclaim, ReclaimContext, ReclaimPriority, Registration,
};
use slatedb::config::{FlushOptions, FlushType, Settings};
use slatedb::db_cache::{CachedEntry, CachedKey, DbCache};
use slatedb::object_store::ObjectStore;
use slatedb::{Db, Error};
use tokio::runtime::Handle;

/// Bytes of a block or an entry beside its content: its place in maps and lists.
const PLACE: usize = 128;
/// The time that a write waits for room.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no room.
    #[error(transparent)]
    Refused(#[from] ChargeError),
    /// The database failed.
    #[error(transparent)]
    Slate(#[from] Error),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A block cache that stores share. It drops its oldest blocks for newer ones, and where other
/// groups lack room.
pub struct Blocks {
    group: Group,
    blocks: Mutex<LruCache<CachedKey, (CachedEntry, Charge)>>,
}

impl Blocks {
    /// Makes a cache of a group. It goes before the buffers if their groups have a `low`.
    pub fn new(group: &Group) -> (Arc<Blocks>, Registration) {
        let blocks = Arc::new(Blocks {
            group: group.clone(),
            blocks: Mutex::new(LruCache::unbounded()),
        });
        let asked = group.register_reclaimer(blocks.clone(), ReclaimPriority::NORMAL);
        (blocks, asked)
    }

    fn look(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(lock(&self.blocks).get(key).map(|(entry, _)| entry.clone()))
    }

    /// Drops blocks until `want` bytes are free. Returns how many are.
    fn evict(&self, want: u64) -> u64 {
        let mut freed = 0;
        while freed < want {
            // It is dropped without the lock: what waits for its bytes may run then.
            let oldest = lock(&self.blocks).pop_lru();
            let Some((_, (_, charge))) = oldest else {
                break;
            };
            freed += charge.bytes();
        }
        freed
    }
}

#[async_trait]
impl DbCache for Blocks {
    async fn get_block(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        self.look(key)
    }
    async fn get_index(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        self.look(key)
    }
    async fn get_filter(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        self.look(key)
    }
    async fn get_stats(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        self.look(key)
    }
    /// No read makes a store write: a block takes free room, or that of older blocks.
    async fn insert(&self, key: CachedKey, entry: CachedEntry) {
        let bytes = PLACE + entry.size();
        let charge = loop {
            match self.group.charge_with(bytes, OnFull::IfRoom) {
                Ok(charge) => break charge,
                Err(_) if self.evict(bytes as u64) > 0 => {}
                Err(_) => return,
            }
        };
        let replaced = lock(&self.blocks).put(key, (entry, charge));
        drop(replaced);
    }
    async fn remove(&self, key: &CachedKey) {
        let removed = lock(&self.blocks).pop(key);
        drop(removed);
    }
    fn entry_count(&self) -> u64 {
        lock(&self.blocks).len() as u64
    }
}

impl Reclaim for Blocks {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        self.evict(want)
    }
}

/// A write buffer.
struct Buffer {
    database: Db,
    runtime: Handle,
    charge: Arc<Mutex<Charge>>,
}

impl Reclaim for Buffer {
    fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
        self.start(want, context);
        0
    }

    /// It is written as a whole, by a task.
    fn start(&self, _: u64, context: &ReclaimContext<'_>) {
        let database = self.database.clone();
        let charge = self.charge.clone();
        let later = context.promise();
        self.runtime.spawn(async move {
            // Entries that come from now on stay charged.
            let written = lock(&charge).take();
            match database
                .flush_with_options(FlushOptions {
                    flush_type: FlushType::MemTable,
                })
                .await
            {
                Ok(()) => {
                    let bytes = written.bytes();
                    drop(written);
                    later.report(bytes);
                }
                Err(_) => lock(&charge).merge(written).expect("one group"),
            }
        });
    }
}

/// One of several stores.
pub struct Store {
    /// Reads go through the block cache.
    pub database: Db,
    group: Group,
    buffered: Arc<Mutex<Charge>>,
    _asked: Registration,
}

impl Store {
    /// Opens a store with the write buffer of a group. Each store of a cache has its `number`.
    pub async fn open(
        objects: Arc<dyn ObjectStore>,
        group: &Group,
        blocks: &Arc<Blocks>,
        number: u64,
    ) -> Result<Store, Error> {
        // The tree says when to write: these are the most for one buffer.
        let settings = Settings {
            l0_sst_size_bytes: 1 << 30,
            max_unflushed_bytes: 2 << 30,
            ..Settings::default()
        };
        let builder = Db::builder(group.name().into_owned(), objects).with_settings(settings);
        let database = builder
            .with_db_cache(blocks.clone(), number)
            .build()
            .await?;
        let buffered = Arc::new(Mutex::new(group.force_charge(0)));
        let buffer = Buffer {
            database: database.clone(),
            runtime: Handle::current(),
            charge: buffered.clone(),
        };
        let asked = group.register_reclaimer(Arc::new(buffer), ReclaimPriority::NORMAL);
        Ok(Store {
            database,
            group: group.clone(),
            buffered,
            _asked: asked,
        })
    }

    /// Waits for room first, while other stores write, or this one.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let charge = self
            .group
            .charge_async(PLACE + key.len() + value.len())
            .timeout(PATIENCE)
            .await?;
        self.database.put(key, value).await?;
        lock(&self.buffered).merge(charge).expect("one group");
        Ok(())
    }
}
