//! Frames of a query that become part of a frame of another session.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::file_format::csv::CsvFormatFactory;
use datafusion::datasource::file_format::format_as_file_type;
use datafusion::datasource::{MemTable, source_as_provider};
use datafusion::logical_expr::{JoinType, LogicalPlan, LogicalPlanBuilder, in_subquery};
use datafusion::optimizer::{AnalyzerRule, OptimizerConfig, OptimizerRule};
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionContext, col};
use memcg::{Group, Limits, Runtime};
use memcg_datafusion::{InGroupSession, PoolConfig};

use crate::data::{MIB, assert_empty, limit, runtime, session};
use crate::queries::lines;

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

/// Frames of a session of a group: over a table, a function, a view, and tables in subqueries.
const FRAMES: [&str; 5] = [
    "SELECT key FROM rows",
    "SELECT value AS key FROM generate_series(1, 100000)",
    "SELECT key FROM seen",
    "SELECT column1 AS key FROM (VALUES (1)) WHERE column1 IN (SELECT key FROM rows)",
    "SELECT (SELECT max(key) FROM rows) AS key",
];

/// Gives a frame of a group to a session outside of it, by each call that takes one.
async fn ways(base: &SessionContext, frame: DataFrame) -> Vec<(&'static str, Result<usize>)> {
    let rows = async || base.table("rows").await?.select_columns(&["key"]);
    let other = frame.clone().select(vec![col("key").alias("other")]);
    let joined =
        rows()
            .await
            .unwrap()
            .join(other.unwrap(), JoinType::Left, &["key"], &["other"], None);
    let plan = frame.logical_plan().clone();
    let optimized = frame.clone().into_optimized_plan();
    let of_base = |plan: LogicalPlan| DataFrame::new(base.state(), plan);
    let is_in = in_subquery(col("key"), Arc::new(plan.clone()));
    let view = frame.clone().into_view();
    base.register_table("of_group", view).unwrap();
    let planned = async |plan: Result<LogicalPlan>| {
        let plan = base.state().create_physical_plan(&plan?).await?;
        collect(plan, base.task_ctx()).await
    };
    let copied = LogicalPlanBuilder::copy_to(
        plan.clone(),
        std::env::temp_dir()
            .join("memcg-none.csv")
            .display()
            .to_string(),
        format_as_file_type(Arc::new(CsvFormatFactory::new())),
        HashMap::new(),
        Vec::new(),
    );
    let ways = [
        ("join", joined.unwrap().collect().await),
        (
            "union",
            rows()
                .await
                .unwrap()
                .union(frame.clone())
                .unwrap()
                .collect()
                .await,
        ),
        (
            "in_subquery",
            rows().await.unwrap().filter(is_in).unwrap().collect().await,
        ),
        (
            "execute_logical_plan",
            base.execute_logical_plan(plan.clone())
                .await
                .unwrap()
                .collect()
                .await,
        ),
        ("new", of_base(plan.clone()).collect().await),
        ("create_physical_plan", planned(Ok(plan)).await),
        ("optimized", of_base(optimized.unwrap()).collect().await),
        (
            "optimized, planned",
            planned(frame.clone().into_optimized_plan()).await,
        ),
        (
            "a view",
            base.sql("SELECT * FROM of_group")
                .await
                .unwrap()
                .collect()
                .await,
        ),
        (
            "copied",
            of_base(copied.unwrap().build().unwrap()).collect().await,
        ),
    ];
    base.deregister_table("of_group").unwrap();
    ways.map(|(way, rows)| (way, rows.map(|rows| rows.len())))
        .into()
}

/// By whatever call of whatever session of a group a frame is made, and by whatever call a session
/// outside takes it, the plan is refused, and no row is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_of_a_group_does_not_run_outside_of_it() {
    let base = session(2);
    base.sql("CREATE VIEW seen AS SELECT key FROM rows")
        .await
        .unwrap();
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(MIB)).unwrap();
    let query = base
        .for_query(&acme, 17, Limits::new(), &PoolConfig::new())
        .unwrap();
    let of_group = base.with_group(&acme, &PoolConfig::new()).unwrap();
    let unoptimized = base.with_group(&acme, &PoolConfig::new()).unwrap();
    let set = unoptimized.sql("SET datafusion.optimizer.max_passes = 0");
    set.await.unwrap().collect().await.unwrap();
    let again = of_group.with_group(&acme, &PoolConfig::new()).unwrap();
    let mut frames = Vec::new();
    for session in [&*query, &of_group, &unoptimized, &again] {
        for sql in FRAMES {
            frames.push((sql, session.sql(sql).await.unwrap()));
        }
        for name in ["rows", "seen"] {
            let table = session.table(name).await.unwrap();
            frames.push((name, table.select_columns(&["key"]).unwrap()));
        }
        let table = session.table_provider("rows").await.unwrap();
        let read = base.read_table(table).unwrap();
        frames.push(("a table", read.select_columns(&["key"]).unwrap()));
    }
    for sql in FRAMES.into_iter().chain(["SELECT 1 AS key"]) {
        // Of a plan without a table the root has a mark until it is optimized.
        let of_query = query.sql(sql).await.unwrap();
        if sql == "SELECT 1 AS key" {
            let told = base
                .execute_logical_plan(of_query.into_parts().1)
                .await
                .unwrap();
            assert_refused("no table", told.collect().await.map(drop));
        } else {
            frames.push((sql, of_query));
        }
    }
    for (what, frame) in frames {
        for (way, ended) in ways(&base, frame.clone()).await {
            assert_refused(&format!("{what}: {way}"), ended.map(drop));
        }
    }
    // A plan that was planned in the group runs there.
    let sql = "SELECT count(*) FROM rows a JOIN rows b ON a.key = b.key";
    for session in [&*query, &of_group] {
        let frame = session.sql(sql).await.unwrap();
        let plan = frame.create_physical_plan().await.unwrap();
        collect(Arc::clone(&plan), base.task_ctx()).await.unwrap();
        let metrics = plan.metrics().unwrap();
        let peak = metrics.sum_by_name("group_peak_live_max_bytes").unwrap();
        assert!(peak.as_usize() > 0, "{metrics}");
    }
    // What the statement of a group would write is not written by another session.
    let state = of_group.state();
    for sql in [
        "INSERT INTO rows SELECT * FROM rows",
        "INSERT INTO rows VALUES (1, 2, 'a')",
    ] {
        let plan = state.create_logical_plan(sql).await.unwrap();
        let told = base
            .execute_logical_plan(plan)
            .await
            .unwrap()
            .collect()
            .await;
        assert_refused(sql, told.map(drop));
    }
    drop((query, of_group, unoptimized, again, state, acme));
    end(&runtime);
}

#[track_caller]
fn assert_refused(what: &str, ended: Result<()>) {
    let told = ended.expect_err(what);
    let said = told.to_string();
    assert!(
        matches!(told.find_root(), DataFusionError::Plan(_)) && said.contains("rows of /acme"),
        "{what}: {said}"
    );
}

/// A rule that looks for the service's own kind of table in each plan.
#[derive(Debug, Default)]
struct Seen(AtomicUsize);

impl Seen {
    fn look(&self, plan: &LogicalPlan) -> Result<()> {
        plan.apply_with_subqueries(|node| {
            if let LogicalPlan::TableScan(scan) = node {
                let table = source_as_provider(&scan.source)?;
                assert!(table.is::<MemTable>(), "{table:?}");
                self.0.fetch_add(1, Ordering::Relaxed);
            }
            Ok(TreeNodeRecursion::Continue)
        })
        .map(drop)
    }
}

impl AnalyzerRule for Seen {
    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        self.look(&plan)?;
        Ok(plan)
    }

    fn name(&self) -> &str {
        "seen"
    }
}

impl OptimizerRule for Seen {
    fn rewrite(
        &self,
        plan: LogicalPlan,
        _config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        self.look(&plan)?;
        Ok(Transformed::no(plan))
    }

    fn name(&self) -> &str {
        "seen"
    }
}

/// The service's rules find its tables as they are in sessions of groups, and so do what tenants
/// register: the service reads it as any other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_and_catalogs_have_the_tables_of_the_service() {
    let base = session(2);
    let seen = Arc::new(Seen::default());
    base.add_analyzer_rule(Arc::clone(&seen) as _);
    base.add_optimizer_rule(Arc::clone(&seen) as _);
    let runtime = runtime();
    let acme = runtime.root().create("acme", Limits::new()).unwrap();
    let query = base
        .for_query(&acme, 17, Limits::new(), &PoolConfig::new())
        .unwrap();
    let of_group = base.with_group(&acme, &PoolConfig::new()).unwrap();
    for (number, session) in [&*query, &of_group].into_iter().enumerate() {
        for sql in [
            "CREATE VIEW made AS SELECT key FROM rows WHERE key IN (SELECT key FROM rows)",
            "CREATE TABLE copied AS SELECT key FROM made",
            "INSERT INTO copied SELECT key FROM made",
        ] {
            let sql = sql.replace("made", &format!("made{number}"));
            let sql = sql.replace("copied", &format!("copied{number}"));
            session.sql(&sql).await.unwrap().collect().await.unwrap();
        }
        for (name, rows) in [("made", 2_000), ("copied", 4_000)] {
            let count = async |session: &SessionContext| {
                let frame = session.table(format!("{name}{number}")).await.unwrap();
                frame.count().await.unwrap()
            };
            assert_eq!([count(&base).await, count(session).await], [rows; 2]);
        }
        let before = seen.0.load(Ordering::Relaxed);
        let frame = session
            .sql("SELECT key FROM rows WHERE key > 7")
            .await
            .unwrap();
        frame.collect().await.unwrap();
        assert!(seen.0.load(Ordering::Relaxed) > before + 1);
    }
    let rows = of_group.table_provider("rows").await.unwrap();
    of_group.register_table("same", rows).unwrap();
    assert_eq!(
        base.table("same").await.unwrap().count().await.unwrap(),
        2_000
    );
    drop((query, of_group, acme));
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
    assert!(lines(&ours) == lines(&plain) && !ours.is_empty());
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
