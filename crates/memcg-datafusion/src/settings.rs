//! `datafusion.runtime.*` in a session of a group: what SQL sets there acts on the runtime that all
//! sessions share.
//!
//! DataFusion applies such a `SET` before the session's planner sees the statement: it makes a new
//! runtime, and changes the limits of caches that all tenants share. So a session of a group has
//! its caches behind a wrapper that leaves their limits alone, and its planner finds by the new
//! runtime what SQL was to change. A key that the service has not allowed changes nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use datafusion::common::{HashMap, Result, TableReference};
use datafusion::execution::DiskManager;
use datafusion::execution::cache::{Cache, CacheEntryInfo, CacheKey, CacheValue};
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion_execution::disk_manager::{
    DEFAULT_MAX_SPILL_MERGE_FAN_IN, DEFAULT_MAX_TEMP_DIRECTORY_SIZE,
};

use crate::plan::disk_of;

/// Prefix of the keys.
pub(crate) const RUNTIME: &str = "datafusion.runtime.";

const MEMORY: &str = "memory_limit";
const DISK: &str = "max_temp_directory_size";
const FOLDER: &str = "temp_directory";
const FAN_IN: &str = "max_spill_merge_fan_in";
const METADATA: &str = "metadata_cache_limit";
const LISTS: &str = "list_files_cache_limit";
const LISTS_TTL: &str = "list_files_cache_ttl";
const STATISTICS: &str = "file_statistics_cache_limit";

/// The keys that SQL may set in sessions of a group, and those of caches that it was to set.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    allowed: Vec<String>,
    asked: Mutex<Vec<&'static str>>,
}

impl Keys {
    /// `allowed`: whole keys.
    pub(crate) fn new(allowed: Vec<String>) -> Arc<Keys> {
        Arc::new(Keys {
            allowed,
            asked: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<&'static str>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pool of a session is its group's, whatever is allowed.
    pub(crate) fn allows(&self, key: &str) -> bool {
        let end = |allowed: &String| allowed.strip_prefix(RUNTIME) == Some(key);
        key != MEMORY && self.allowed.iter().any(end)
    }

    /// The keys, without their prefix, for which the runtime `new` is not `own`. Empty: SQL has set
    /// what was there, or a key that is not known here.
    pub(crate) fn changed(&self, own: &RuntimeEnv, new: &RuntimeEnv) -> Vec<&'static str> {
        let mut changed = std::mem::take(&mut *self.lock());
        if !Arc::ptr_eq(&own.memory_pool, &new.memory_pool) {
            changed.push(MEMORY);
        }
        changed.extend(changed_disk(&own.disk_manager, &new.disk_manager));
        let [own, new] = [own, new].map(|env| &env.cache_manager);
        // A limit of zero leaves the cache out.
        if own.get_list_files_cache().is_some() && new.get_list_files_cache().is_none() {
            changed.push(LISTS);
        }
        let statistics = [own, new].map(|caches| caches.get_file_statistic_cache().is_some());
        if statistics == [true, false] {
            changed.push(STATISTICS);
        }
        changed
    }
}

/// The keys of a disk manager that SQL was to change. It replaces the whole manager, by one with
/// DataFusion's defaults for what it does not set: these count only where nothing else differs.
fn changed_disk(own: &Arc<DiskManager>, new: &Arc<DiskManager>) -> Vec<&'static str> {
    if Arc::ptr_eq(own, new) {
        return Vec::new();
    }
    let sizes = [own, new].map(|disk| disk.max_temp_directory_size());
    let fans = [own, new].map(|disk| disk.max_spill_merge_fan_in());
    let folders = [own, new].map(|disk| disk.temp_dir_paths());
    let differ = [
        (
            DISK,
            sizes[0] != sizes[1],
            sizes[1] == DEFAULT_MAX_TEMP_DIRECTORY_SIZE,
        ),
        (
            FAN_IN,
            fans[0] != fans[1],
            fans[1] == DEFAULT_MAX_SPILL_MERGE_FAN_IN,
        ),
        (FOLDER, folders[0] != folders[1], folders[1].is_empty()),
    ];
    let keys = |counts_default: bool| {
        let is_one = move |&&(_, differs, is_default): &&(_, bool, bool)| {
            differs && (counts_default || !is_default)
        };
        differ
            .iter()
            .filter(is_one)
            .map(|(key, ..)| *key)
            .collect::<Vec<_>>()
    };
    let set = keys(false);
    if set.is_empty() { keys(true) } else { set }
}

/// The runtime of a session of a group: that of its session, with the group's pool and disk
/// manager, and the shared caches without a way to their limits.
pub(crate) fn runtime_of(
    env: &RuntimeEnv,
    pool: &Arc<dyn MemoryPool>,
    keys: &Arc<Keys>,
) -> Result<Arc<RuntimeEnv>> {
    let disk = disk_of(env, pool)?;
    let mut builder = RuntimeEnvBuilder::from_runtime_env(env).with_memory_pool(Arc::clone(pool));
    builder.disk_manager = Some(disk);
    let caches = &mut builder.cache_manager;
    caches.file_metadata_cache = caches
        .file_metadata_cache
        .take()
        .map(|cache| KeptCache::over(cache, METADATA, None, keys));
    caches.list_files_cache = caches
        .list_files_cache
        .take()
        .map(|cache| KeptCache::over(cache, LISTS, Some(LISTS_TTL), keys));
    caches.file_statistics_cache = caches
        .file_statistics_cache
        .take()
        .map(|cache| KeptCache::over(cache, STATISTICS, None, keys));
    builder.build_arc()
}

/// A cache of the service whose limits SQL of a tenant does not change, unless the key is allowed.
struct KeptCache<K: CacheKey, V: CacheValue> {
    cache: Arc<dyn Cache<K, V>>,
    limit: &'static str,
    ttl: Option<&'static str>,
    keys: Arc<Keys>,
}

impl<K: CacheKey + 'static, V: CacheValue + 'static> KeptCache<K, V> {
    fn over(
        cache: Arc<dyn Cache<K, V>>,
        limit: &'static str,
        ttl: Option<&'static str>,
        keys: &Arc<Keys>,
    ) -> Arc<dyn Cache<K, V>> {
        Arc::new(KeptCache {
            cache,
            limit,
            ttl,
            keys: Arc::clone(keys),
        })
    }
}

impl<K: CacheKey, V: CacheValue> Cache<K, V> for KeptCache<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        self.cache.get(key)
    }

    fn put(&self, key: &K, value: V) -> Option<V> {
        self.cache.put(key, value)
    }

    fn remove(&self, key: &K) -> Option<V> {
        self.cache.remove(key)
    }

    fn contains_key(&self, key: &K) -> bool {
        self.cache.contains_key(key)
    }

    fn len(&self) -> usize {
        self.cache.len()
    }

    fn clear(&self) {
        self.cache.clear();
    }

    fn name(&self) -> String {
        self.cache.name()
    }

    fn cache_limit(&self) -> usize {
        self.cache.cache_limit()
    }

    /// DataFusion also calls it with the limit as it is, for each runtime that it makes.
    fn update_cache_limit(&self, limit: usize) {
        if limit == self.cache.cache_limit() {
            return;
        }
        if self.keys.allows(self.limit) {
            self.cache.update_cache_limit(limit);
        }
        self.keys.lock().push(self.limit);
    }

    fn cache_ttl(&self) -> Option<Duration> {
        self.cache.cache_ttl()
    }

    fn update_cache_ttl(&self, ttl: Option<Duration>) {
        let Some(key) = self.ttl.filter(|_| ttl != self.cache.cache_ttl()) else {
            return;
        };
        if self.keys.allows(key) {
            self.cache.update_cache_ttl(ttl);
        }
        self.keys.lock().push(key);
    }

    fn drop_table_entries(&self, table: &TableReference) -> Result<()> {
        self.cache.drop_table_entries(table)
    }

    fn list_entries(&self) -> HashMap<K, CacheEntryInfo<V>> {
        self.cache.list_entries()
    }
}
