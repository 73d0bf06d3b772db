//! The rules of the sources: what each holds, why, and what to do where it is broken.
//! `made_up.rs` plants a fault for each.

/// A rule that `cargo test --test tidy` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Downwards,
    NoCircle,
    KnownCircle,
    OneDoor,
    Checkers,
    PartsOfSync,
    Edges,
    Orderings,
    Statistics,
    WithoutPair,
    Mutations,
    AsideUnderLoom,
    ProgramsListed,
    FeaturesListed,
    Version,
    NamesOfPages,
    ModelsOfPages,
    ProtocolPages,
    Layers,
    Links,
    Commands,
    Changelog,
    Jobs,
    Steps,
    Series,
}

/// A rule in words.
struct Words {
    holds: &'static str,
    /// The reason, in one line.
    because: &'static str,
    to_mend: &'static str,
}

impl Rule {
    pub(crate) const ALL: &[Rule] = &[
        Rule::Downwards,
        Rule::NoCircle,
        Rule::KnownCircle,
        Rule::OneDoor,
        Rule::Checkers,
        Rule::PartsOfSync,
        Rule::Edges,
        Rule::Orderings,
        Rule::Statistics,
        Rule::WithoutPair,
        Rule::Mutations,
        Rule::AsideUnderLoom,
        Rule::ProgramsListed,
        Rule::FeaturesListed,
        Rule::Version,
        Rule::NamesOfPages,
        Rule::ModelsOfPages,
        Rule::ProtocolPages,
        Rule::Layers,
        Rule::Links,
        Rule::Commands,
        Rule::Changelog,
        Rule::Jobs,
        Rule::Steps,
        Rule::Series,
    ];

    fn words(self) -> Words {
        let (holds, because, to_mend) = match self {
            Rule::Downwards => (
                "a file uses its own folder and those below it",
                "a layer can be read, tested and changed without those above it",
                "move what both need to the lower folder, or let the upper one pass it in; LAYERS in \
                 tests/tidy/graph.rs has the order",
            ),
            Rule::NoCircle => (
                "no file uses itself in a circle, by imports or by calls",
                "files of a circle can only be understood all at once",
                "move the function that closes the circle to the file that needs it, or below both, or pass what it \
                 returns as an argument",
            ),
            Rule::KnownCircle => (
                "each circle that KNOWN lists is there, with these calls",
                "an entry that outlives its circle would let the circle come back",
                "delete or correct the entry of KNOWN in tests/tidy/graph.rs; do not add one to make a new circle pass",
            ),
            Rule::OneDoor => (
                "atomics, locks, thread-locals, loom and shuttle enter through src/sync",
                "a model checker does not see what comes from elsewhere",
                "import it from `crate::sync`; what is missing there is added there, for std, loom and shuttle",
            ),
            Rule::Checkers => (
                "`cfg(loom)` and `cfg(shuttle)` stand in src/sync and src/tests alone",
                "a model has to run the code that users run",
                "put what differs behind a name of `crate::sync`",
            ),
            Rule::PartsOfSync => (
                "the parts of `sync` that a protocol or a lock order rests on are used where PARTS says",
                "a fence, half a barrier pair or a lock elsewhere is a protocol that no page explains",
                "use what the row of PARTS in tests/tidy/parts.rs names, or add the folder to it with the reason",
            ),
            Rule::Edges => (
                "an ordering edge is named at both ends, explained, and has a loom model",
                "an ordering that no model needs is a guess",
                "write a row `| E7 | ... |` with a model of src/tests into src/docs/orderings.md, and name the edge in \
                 a comment at both ends",
            ),
            Rule::Orderings => (
                "an ordering beyond Relaxed names its edge above it, or says `No edge:` and why",
                "a reader has to know what the ordering pairs with",
                "put `// Acquire (E2): pairs with ...` above it, with no empty line between",
            ),
            Rule::Statistics => (
                "an atomic of `stat_atomic` is Relaxed",
                "figures are left out of the models, so no protocol may rest on one",
                "take the atomic from `crate::sync`, where the models see it",
            ),
            Rule::WithoutPair => (
                "a model of edges that hold without the barrier pair runs without it",
                "the pair would hide an ordering that is missing",
                "start it with `model_without_pair`, or add it to the paragraph \"These models keep the pair.\" of \
                 src/docs/orderings.md with the reason",
            ),
            Rule::Mutations => (
                "each model fails for a mutation, and each mutation has its mark",
                "a model that passes whatever the code does proves nothing",
                "put `// Mutation: NAME` above the statement and a row into the table that is named, in the order of \
                 names",
            ),
            Rule::AsideUnderLoom => (
                "tests and benches step aside under loom",
                "loom's types panic outside of a model",
                "start the file with `#![cfg(not(loom))]`",
            ),
            Rule::ProgramsListed => (
                "each program of tests and benches is in its manifest",
                "cargo passes over a program that no entry starts",
                "add the entry, with `path = \"FILE\"` on a line of its own",
            ),
            Rule::FeaturesListed => (
                "README and the root page name each feature; README names each crate",
                "nobody turns on what no page names",
                "add the row",
            ),
            Rule::Version => (
                "README and CHANGELOG state the version of the manifest",
                "a reader copies the line",
                "write the version of Cargo.toml",
            ),
            Rule::NamesOfPages => (
                "the files that a page names exist, and have the names that it gives",
                "a page that points nowhere costs its reader the search",
                "write the path from the page, from the root or from src, and the name as the code has it",
            ),
            Rule::ModelsOfPages => (
                "the models and edges that a page names exist",
                "a proof that is named and not there is none",
                "name a model of src/tests, and an edge of src/docs/orderings.md",
            ),
            Rule::ProtocolPages => (
                "a protocol page names each model and explains each edge",
                "the table of edges says what pairs, the page says which race that stops",
                "add it to the races, or to the step, of the page beside the code",
            ),
            Rule::Layers => (
                "docs/src/architecture.md has the folders of LAYERS, in this order",
                "the page is where a reader looks the order up",
                "bring the table and LAYERS in tests/tidy/graph.rs to the same order",
            ),
            Rule::Links => (
                "each relative link of a page leads to a file, and to a heading in it",
                "a dead link costs its reader the search",
                "correct the path from the page's own folder, or the anchor: a heading in lower case, with dashes",
            ),
            Rule::Commands => (
                "a step of .ci/run runs each command that README and the book print",
                "a command that nothing runs stops working and nobody knows",
                "list it in .ci/readme.txt with the step that runs it (`readme` for one that no other does), or correct \
                 the page",
            ),
            Rule::Changelog => (
                "CHANGELOG.md has the form of Keep a Changelog; a first version only adds",
                "before a first release there is no user whose build could break",
                "say under `Added` what there is",
            ),
            Rule::Jobs => (
                "every step of .ci/run is in one job of .github/workflows, and a job is one call of it",
                "what a hosted run does and this machine does not is a second check, which differs",
                "name the step in one job, `bash .ci/run STEP...`, and in one of the two lists of .ci/run",
            ),
            Rule::Steps => (
                "docs/src/checks.md has a row for each step, in the order of .ci/run",
                "the page is where a reader looks up what a step holds",
                "add or move the row",
            ),
            Rule::Series => (
                "the chapters of the patch series leave out no patch, no table and no claim, and name what exists",
                "a comparison that leaves out what does not fit is an advertisement",
                "give the claim its verdict, as the head of benches/series/chapter.rs says",
            ),
        };
        Words {
            holds,
            because,
            to_mend,
        }
    }

    /// Fails if there are faults, with all that a reader needs to mend them.
    pub(crate) fn hold(self, faults: &[String]) {
        assert!(faults.is_empty(), "{}", self.told(faults));
    }

    pub(crate) fn told(self, faults: &[String]) -> String {
        let Words {
            holds,
            because,
            to_mend,
        } = self.words();
        format!(
            "{holds}\n  because: {because}\n  to mend: {to_mend}\n  broken here:\n    {}",
            faults.join("\n    ")
        )
    }
}
