//! Frames of a query that become part of a frame of another session.

use datafusion::common::{DataFusionError, Result};
use datafusion::dataframe::DataFrame;
use datafusion::logical_expr::JoinType;
use datafusion::prelude::col;
use memcg::{Group, Limits, Runtime};
use memcg_datafusion::{InGroupSession, PoolConfig};

use crate::data::{MIB, assert_empty, limit, runtime, session, text};

/// It holds some 4 MiB that it cannot spill.
fn join(left: DataFrame, right: DataFrame) -> Result<DataFrame> {
    let [left, right] =
        [(left, "a"), (right, "b")].map(|(frame, name)| frame.select(vec![col("key").alias(name)]));
    left?.join(right?, JoinType::Inner, &["a"], &["b"], None)
}

/// The first frame's session runs the join. In a group it is charged there; outside of all groups
/// it is refused in words, and reads no row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_with_rows_of_a_query_is_charged_or_refused() {
    let base = session(60);
    let runtime = runtime();
    let [acme, other] =
        ["acme", "other"].map(|name| runtime.root().create(name, limit(MIB)).unwrap());
    let query = base
        .for_query(&acme, 17, Limits::new(), &PoolConfig::new())
        .unwrap();
    let of_other = base.with_group(&other, &PoolConfig::new()).unwrap();
    for number in 0..3 {
        let rows = async || match number {
            0 => query.sql("SELECT * FROM rows").await,
            1 => query.table("rows").await,
            _ => query.read_table(base.table_provider("rows").await?),
        };
        let of_base = async || base.table("rows").await;
        let outside = join(of_base().await.unwrap(), rows().await.unwrap()).unwrap();
        let refused = outside.collect().await.unwrap_err();
        assert!(
            matches!(refused.find_root(), DataFusionError::Plan(_)),
            "{refused:?}"
        );
        let line = refused.to_string();
        assert!(
            line.contains("rows of /acme/17 are part of a frame of a session outside of the group"),
            "{line}"
        );
        assert!(line.contains("query_frame.join(other_frame)"), "{line}");
        assert_eq!(acme.peak(), 0, "no row is read");
        let frame = of_other.table("rows").await.unwrap();
        let refused = join(frame, rows().await.unwrap())
            .unwrap()
            .collect()
            .await
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains("/other refused ") && acme.peak() == 0,
            "{refused}"
        );
    }
    let frame = query.table("rows").await.unwrap();
    let refused = join(frame, base.table("rows").await.unwrap())
        .unwrap()
        .collect()
        .await
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("/acme refused ") && refused.contains(" for /acme/17: "),
        "{refused}"
    );
    drop((query, of_other, acme, other));
    end(&runtime);
}

/// A mark changes no plan and no row of the query.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_of_a_query_is_as_any_other() {
    let base = session(2);
    let runtime = runtime();
    let query = base
        .for_query(&runtime.root(), 17, Limits::new(), &PoolConfig::new())
        .unwrap();
    let sql = "SELECT key FROM rows WHERE id < 500 UNION ALL SELECT id FROM (SELECT id, key FROM rows) WHERE key IN \
               (SELECT key FROM rows WHERE id > 1990) ORDER BY key";
    let [ours, plain] = [query.sql(sql).await.unwrap(), base.sql(sql).await.unwrap()];
    let later =
        |frame: DataFrame| frame.filter(col("key").gt(col("key") % datafusion::prelude::lit(7)));
    let [ours, plain] = [later(ours).unwrap(), later(plain).unwrap()];
    assert_eq!(ours.schema(), plain.schema());
    let plans = [&ours, &plain].map(|frame| {
        frame
            .clone()
            .into_optimized_plan()
            .unwrap()
            .display_indent()
            .to_string()
    });
    assert_eq!(plans[0], plans[1]);
    let [ours, plain] = [
        ours.collect().await.unwrap(),
        plain.collect().await.unwrap(),
    ];
    assert!(text(&ours) == text(&plain) && !ours.is_empty());
    drop(query);
    end(&runtime);
}

fn end(runtime: &Runtime) {
    runtime
        .root()
        .children()
        .iter()
        .for_each(Group::offline_tree);
    assert_empty(runtime);
}
