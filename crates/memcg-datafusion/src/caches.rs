//! Caches that the queries of all tenants share, allocated in a group of the service's own.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::{HashMap, Result, TableReference};
use datafusion::execution::cache::cache_manager::{
    CacheManagerConfig, CachedFileList, CachedFileMetadata, CachedFileMetadataEntry, FileMetadata,
};
use datafusion::execution::cache::default_cache::DefaultCache;
use datafusion::execution::cache::{Cache, CacheEntryInfo, CacheKey, CacheValue};
use memcg::Group;

type Copies = Arc<dyn Fn(&dyn FileMetadata) -> Option<Arc<dyn FileMetadata>> + Send + Sync>;

/// Caches for a `RuntimeEnv` that allocate their entries in one group.
///
/// With `memcg-alloc` what a query reads into a shared cache is charged to the query, and stays so
/// while the entry is there: long after the query, the first reader owes what all read. These
/// caches keep a copy that is allocated in `group`, so the reader's own is freed with its query. A
/// copy is made once for each entry, and takes the time of a clone. Without an allocator that
/// charges groups nothing of a cache is charged.
///
/// The caches copy statistics and lists of files. Metadata inside of files has a type for each
/// format: the functions of [`copy_with`](GroupCaches::copy_with) copy it, and metadata of a type
/// that none of them knows is kept uncopied. With the feature `parquet`, that of Parquet files is
/// known.
///
/// ```
/// use datafusion::execution::runtime_env::RuntimeEnvBuilder;
/// use datafusion::prelude::{SessionConfig, SessionContext};
/// use memcg::{Limits, Runtime};
/// use memcg_datafusion::GroupCaches;
///
/// let runtime = Runtime::builder().build()?;
/// let caches = runtime.root().create("caches", Limits::new())?;
/// let env = RuntimeEnvBuilder::new().with_cache_manager(GroupCaches::new(&caches).into_config()).build_arc()?;
/// let sessions = SessionContext::new_with_config_rt(SessionConfig::new(), env);
/// # let _ = sessions;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a runtime is built with it"]
pub struct GroupCaches {
    group: Group,
    config: CacheManagerConfig,
    copies: Copies,
}

impl GroupCaches {
    /// Begins with caches in `group` of DataFusion's default sizes.
    /// [`into_config`](GroupCaches::into_config) makes them.
    pub fn new(group: &Group) -> GroupCaches {
        GroupCaches {
            group: group.clone(),
            config: CacheManagerConfig::default(),
            copies: Arc::new(copy_known),
        }
    }

    /// Takes the sizes in bytes, and the lifetime of lists of files, from `config`. Caches that
    /// `config` has are replaced.
    pub fn sizes_of(mut self, config: CacheManagerConfig) -> GroupCaches {
        self.config = config;
        self
    }

    /// Adds a function that copies metadata of files. It returns `None` for a type that it does not
    /// know; the functions of before are then asked.
    ///
    /// The function runs in the group when a query puts an entry, with no lock held.
    pub fn copy_with(
        mut self,
        copy: impl Fn(&dyn FileMetadata) -> Option<Arc<dyn FileMetadata>> + Send + Sync + 'static,
    ) -> GroupCaches {
        let before = self.copies;
        self.copies = Arc::new(move |metadata| copy(metadata).or_else(|| before(metadata)));
        self
    }

    /// Makes the caches, and returns them as a configuration for a `RuntimeEnvBuilder`.
    pub fn into_config(self) -> CacheManagerConfig {
        let GroupCaches {
            group,
            mut config,
            copies,
        } = self;
        let lists = config.list_files_cache_limit;
        let statistics = config.file_statistics_cache_limit;
        let metadata = config.metadata_cache_limit;
        let of_lists = |list: CachedFileList| CachedFileList::new(list.files.to_vec());
        let of_statistics = |entry: CachedFileMetadata| CachedFileMetadata {
            statistics: Arc::new((*entry.statistics).clone()),
            meta: entry.meta.clone(),
            ..entry
        };
        let of_metadata = move |entry: CachedFileMetadataEntry| CachedFileMetadataEntry {
            meta: entry.meta.clone(),
            file_metadata: copies(&*entry.file_metadata).unwrap_or(entry.file_metadata),
        };
        config.list_files_cache = Some(GroupCache::of(
            &group,
            lists,
            config.list_files_cache_ttl,
            of_lists,
        ));
        config.file_statistics_cache =
            Some(GroupCache::of(&group, statistics, None, of_statistics));
        config.file_metadata_cache = Some(GroupCache::of(&group, metadata, None, of_metadata));
        config
    }
}

impl fmt::Debug for GroupCaches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupCaches")
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

#[cfg(not(feature = "parquet"))]
fn copy_known(_metadata: &dyn FileMetadata) -> Option<Arc<dyn FileMetadata>> {
    None
}

#[cfg(feature = "parquet")]
fn copy_known(metadata: &dyn FileMetadata) -> Option<Arc<dyn FileMetadata>> {
    // DataFusion has two types of this name: its readers' and its own.
    use datafusion::datasource::physical_plan::parquet::CachedParquetMetaData as OfReader;
    use datafusion::datasource::physical_plan::parquet::metadata::CachedParquetMetaData as Own;
    let metadata = metadata.as_any();
    if let Some(own) = metadata.downcast_ref::<Own>() {
        return Some(Arc::new(Own::new(Arc::new(
            (**own.parquet_metadata()).clone(),
        ))));
    }
    let of_reader = metadata.downcast_ref::<OfReader>()?.parquet_metadata();
    Some(Arc::new(OfReader::new(Arc::new((**of_reader).clone()))))
}

/// DataFusion's own cache, whose entries are copied into the group.
struct GroupCache<K: CacheKey, V: CacheValue> {
    group: Group,
    inner: DefaultCache<K, V>,
    copy: Box<dyn Fn(V) -> V + Send + Sync>,
}

impl<K: CacheKey, V: CacheValue> GroupCache<K, V> {
    fn of(
        group: &Group,
        limit: usize,
        ttl: Option<Duration>,
        copy: impl Fn(V) -> V + Send + Sync + 'static,
    ) -> Arc<GroupCache<K, V>> {
        let inner = group.run(|| DefaultCache::new_with_ttl(limit, ttl));
        Arc::new(GroupCache {
            group: group.clone(),
            inner,
            copy: Box::new(copy),
        })
    }
}

impl<K: CacheKey, V: CacheValue> Cache<K, V> for GroupCache<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        self.inner.get(key)
    }

    fn put(&self, key: &K, value: V) -> Option<V> {
        self.group.run(|| {
            let value = (self.copy)(value);
            self.inner.put(key, value)
        })
    }

    fn remove(&self, key: &K) -> Option<V> {
        self.inner.remove(key)
    }

    fn contains_key(&self, key: &K) -> bool {
        self.inner.contains_key(key)
    }

    fn len(&self) -> usize {
        self.inner.len()
    }

    fn clear(&self) {
        self.inner.clear();
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn cache_limit(&self) -> usize {
        self.inner.cache_limit()
    }

    fn update_cache_limit(&self, limit: usize) {
        self.inner.update_cache_limit(limit);
    }

    fn cache_ttl(&self) -> Option<Duration> {
        self.inner.cache_ttl()
    }

    fn update_cache_ttl(&self, ttl: Option<Duration>) {
        self.inner.update_cache_ttl(ttl);
    }

    fn drop_table_entries(&self, table: &TableReference) -> Result<()> {
        self.inner.drop_table_entries(table)
    }

    fn list_entries(&self) -> HashMap<K, CacheEntryInfo<V>> {
        self.inner.list_entries()
    }
}
