//! SQL of a session of a group does not reach what all sessions share.

use std::path::PathBuf;
use std::sync::Arc;

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::cache::cache_manager::CacheManagerConfig;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use memcg::{Group, Limits};
use memcg_datafusion::{InGroupSession, PoolConfig};

use crate::data::{MIB, assert_empty, batch, limit, runtime};

/// A service whose runtime has no setting of DataFusion's defaults, with a table `rows`.
fn service(folder: &PathBuf) -> SessionContext {
    let caches = CacheManagerConfig::default()
        .with_file_statistics_cache_limit(5 << 20)
        .with_list_files_cache_limit(7 << 20)
        .with_list_files_cache_ttl(Some(std::time::Duration::from_secs(600)))
        .with_metadata_cache_limit(9 << 20);
    let env = RuntimeEnvBuilder::new()
        .with_temp_file_path(folder)
        .with_max_temp_directory_size(3 << 30)
        .with_max_spill_merge_fan_in(8)
        .with_cache_manager(caches)
        .build_arc()
        .unwrap();
    let config = SessionConfig::new()
        .with_target_partitions(1)
        .with_sort_spill_reservation_bytes(64 << 10);
    let session = SessionContext::new_with_config_rt(config, env);
    let batches: Vec<_> = (0..30).map(batch).collect();
    let table =
        datafusion::datasource::MemTable::try_new(batches[0].schema(), vec![batches]).unwrap();
    session.register_table("rows", Arc::new(table)).unwrap();
    session
}

fn settings(session: &SessionContext) -> Vec<String> {
    let entries = session.runtime_env().config_entries().into_iter();
    entries
        .map(|entry| format!("{} {:?}", entry.key, entry.value))
        .collect()
}

async fn run(session: &SessionContext, sql: &str) -> Result<()> {
    session.sql(sql).await?.collect().await.map(drop)
}

/// A `SET` of the key that DataFusion takes.
async fn set_of(key: &str) -> String {
    for value in ["4M", "3", "2m", "/tmp/memcg-elsewhere"] {
        let set = format!("SET {key} = '{value}'");
        // A folder takes any text.
        let is_folder = key.ends_with("directory");
        if is_folder == value.starts_with('/') && run(&SessionContext::new(), &set).await.is_ok() {
            return set;
        }
    }
    panic!("no value of {key}");
}

/// Each key of the runtime that this version of DataFusion has is refused, by SET and by RESET, in
/// each kind of session, and the error names the key. Neither the service's runtime nor that of the
/// session changes, and a query that runs later, or was made in between, spills where it did.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_key_of_the_runtime_is_set() {
    let folder = std::env::temp_dir().join(format!("memcg-settings-{}", std::process::id()));
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(2 * MIB)).unwrap();
    let base = service(&folder);
    let before = settings(&base);
    let keys: Vec<_> = RuntimeEnvBuilder::new().entries();
    assert!(keys.len() >= 8, "{keys:?}");
    for key in keys {
        let key = key.key;
        for command in [set_of(&key).await, format!("RESET {key}")] {
            let query = base
                .for_query(&acme, "query", Limits::new(), &PoolConfig::new())
                .unwrap();
            let of_group = base.with_group(&acme, &PoolConfig::new()).unwrap();
            let of_query: &SessionContext = &query;
            let told = [
                query.sql(&command).await.unwrap().collect().await,
                of_query.sql(&command).await.unwrap().collect().await,
                of_group.sql(&command).await.unwrap().collect().await,
            ];
            for told in told {
                let told = told.expect_err(&command);
                // DataFusion 55.2 has a RESET that changes nothing, and so leaves no trace.
                let is_vain = command == "RESET datafusion.runtime.list_files_cache_ttl";
                let said = told.to_string();
                assert!(
                    matches!(told, DataFusionError::Configuration(_))
                        && (said.contains(&key) || is_vain),
                    "{command}: {said}"
                );
            }
            // Its answer is not read: the next query finds the runtime that it has set.
            of_group.sql(&command).await.unwrap();
            let disk = || of_group.runtime_env().disk_manager.temp_dir_paths();
            run(&of_group, "SELECT key, text, id FROM rows ORDER BY text")
                .await
                .unwrap();
            assert!(
                disk().iter().all(|path| path.starts_with(&folder)),
                "{command}: {:?}",
                disk()
            );
            for session in [&base, of_query, &of_group] {
                let now = settings(session);
                let changed: Vec<_> = now.iter().filter(|one| !before.contains(one)).collect();
                let is_own = |one: &&&String| one.contains("memory_limit");
                assert!(
                    changed.iter().all(|one| is_own(&one)),
                    "{command}: {changed:?}"
                );
            }
        }
    }
    assert!(
        !PathBuf::from("/tmp/memcg-elsewhere")
            .read_dir()
            .is_ok_and(|mut all| all.next().is_some())
    );
    let _ = std::fs::remove_dir_all(&folder);
    end(&runtime, acme);
}

/// Statements that name a key in another way, or might, set nothing: each ends with an error, or leaves
/// the runtime as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_other_statement_sets_a_key() {
    let folder = std::env::temp_dir().join(format!("memcg-others-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(2 * MIB)).unwrap();
    let base = service(&folder);
    let before = settings(&base);
    let of_group = base.with_group(&acme, &PoolConfig::new()).unwrap();
    let of_session = settings(&of_group);
    let file = folder.join("one.csv");
    std::fs::write(&file, "a\n1\n").unwrap();
    let key = "datafusion.runtime.metadata_cache_limit";
    for sql in [
        format!("ALTER SESSION SET {key} = '1K'"),
        format!("ALTER SYSTEM SET {key} = '1K'"),
        format!("SET SESSION {key} = '1K'"),
        format!("SET LOCAL {key} = '1K'"),
        format!("SET GLOBAL {key} = '1K'"),
        format!("SET {key} TO '1K'"),
        format!("SET {} = '1K'", key.to_uppercase()),
        format!("SET \"{key}\" = '1K'"),
        "SET \"datafusion\".\"runtime\".\"metadata_cache_limit\" = '1K'".to_string(),
        format!("SET ({key}, datafusion.execution.batch_size) = ('1K', 7)"),
        format!("SET {key} TO DEFAULT"),
        "RESET ALL".to_string(),
        "RESET datafusion.runtime".to_string(),
        format!("PREPARE sets AS SET {key} = '1K'"),
        format!("EXPLAIN SET {key} = '1K'"),
        format!(
            "COPY (SELECT 1 AS a) TO '{}' STORED AS CSV OPTIONS ('{key}' '1K')",
            folder.join("copied.csv").display()
        ),
        format!(
            "CREATE EXTERNAL TABLE one (a BIGINT) STORED AS CSV LOCATION '{}' OPTIONS ('{key}' '1K')",
            file.display()
        ),
    ] {
        let told = run(&of_group, &sql).await;
        let statement = run(&of_group, "SELECT count(*) FROM rows").await;
        assert!(statement.is_ok(), "{sql}: {statement:?}");
        assert_eq!(settings(&base), before, "{sql}: {told:?}");
        assert_eq!(settings(&of_group), of_session, "{sql}: {told:?}");
        assert_eq!(
            of_group.runtime_env().memory_pool.to_string(),
            "group(/acme)"
        );
    }
    drop(of_group);
    let _ = std::fs::remove_dir_all(&folder);
    end(&runtime, acme);
}

/// A key that the service allows is set, in the session that sets it; a limit of a cache in the
/// cache, which is shared. `memory_limit` is never set.
#[tokio::test(flavor = "current_thread")]
async fn a_key_that_is_allowed_is_set() {
    let folder = std::env::temp_dir().join(format!("memcg-allowed-{}", std::process::id()));
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(MIB)).unwrap();
    let base = service(&folder);
    let config = PoolConfig::new()
        .runtime_key("datafusion.runtime.max_spill_merge_fan_in")
        .runtime_key("datafusion.runtime.metadata_cache_limit")
        .runtime_key("datafusion.runtime.memory_limit");
    let session = base.with_group(&acme, &config).unwrap();
    let set = async |session: &SessionContext, key: &str, value: &str| {
        run(
            session,
            &format!("SET datafusion.runtime.{key} = '{value}'"),
        )
        .await
    };
    set(&session, "max_spill_merge_fan_in", "5").await.unwrap();
    set(&session, "metadata_cache_limit", "4M").await.unwrap();
    for (key, value) in [
        ("memory_limit", "8G"),
        ("list_files_cache_limit", "4M"),
        ("temp_directory", "/tmp/memcg-elsewhere"),
    ] {
        set(&session, key, value).await.unwrap_err();
    }
    let [own, shared] = [&session, &base].map(SessionContext::runtime_env);
    assert_eq!(own.memory_pool.to_string(), "group(/acme)");
    let fans = [&own, &shared].map(|env| env.disk_manager.max_spill_merge_fan_in());
    assert_eq!(fans, [5, 8]);
    let limits = [&own, &shared].map(|env| env.cache_manager.get_metadata_cache_limit());
    assert_eq!(limits, [4 << 20; 2]);
    assert_eq!(shared.cache_manager.get_list_files_cache_limit(), 7 << 20);
    drop((session, own));
    let _ = std::fs::remove_dir_all(&folder);
    end(&runtime, acme);
}

fn end(runtime: &memcg::Runtime, acme: Group) {
    acme.offline_tree();
    drop(acme);
    assert_empty(runtime);
}
