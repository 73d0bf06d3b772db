//! The rules of the sources: what each holds, why, and what to do where it is broken.
//! `made_up.rs` plants a fault for each.

/// A rule in words.
struct Words {
    holds: &'static str,
    /// The reason, in one line.
    because: &'static str,
    to_mend: &'static str,
}

/// One list has the rules and their words, so that none can lack its reason or its remedy.
macro_rules! rules {
    ($($rule:ident { holds: $holds:expr, because: $because:expr, to_mend: $to_mend:expr, })*) => {
        /// A rule that `cargo test --test tidy` holds.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Rule {
            $($rule),*
        }

        impl Rule {
            pub(crate) const ALL: &[Rule] = &[$(Rule::$rule),*];

            fn words(self) -> Words {
                match self {
                    $(Rule::$rule => Words {
                        holds: $holds,
                        because: $because,
                        to_mend: $to_mend,
                    }),*
                }
            }
        }
    };
}

rules! {
    Downwards {
        holds: "a file uses its own folder and those below it",
        because: "a layer can be read, tested and changed without those above it",
        to_mend: "move what both need to the lower folder, or let the upper one pass it in; LAYERS in \
         tests/tidy/graph.rs has the order",
    }
    NoCircle {
        holds: "no file uses itself in a circle, by imports or by calls",
        because: "files of a circle can only be understood all at once",
        to_mend: "move the function that closes the circle to the file that needs it, or below both, or \
         pass what it returns as an argument",
    }
    KnownCircle {
        holds: "each circle that KNOWN lists is there, with these calls",
        because: "an entry that outlives its circle would let the circle come back",
        to_mend: "delete or correct the entry of KNOWN in tests/tidy/graph.rs; do not add one to make a \
         new circle pass",
    }
    OneDoor {
        holds: "atomics, locks, thread-locals, loom and shuttle enter through src/sync",
        because: "a model checker does not see what comes from elsewhere",
        to_mend: "import it from `crate::sync`; what is missing there is added there, for std, loom and \
         shuttle",
    }
    Checkers {
        holds: "`cfg(loom)` and `cfg(shuttle)` stand in src/sync and src/tests alone",
        because: "a model has to run the code that users run",
        to_mend: "put what differs behind a name of `crate::sync`",
    }
    PartsOfSync {
        holds: "the parts of `sync` that a protocol or a lock order rests on are used where PARTS says",
        because: "a fence, half a barrier pair or a lock elsewhere is a protocol that no page explains",
        to_mend: "use what the row of PARTS in tests/tidy/parts.rs names, or add the folder to it with \
         the reason",
    }
    Edges {
        holds: "an ordering edge is named at both ends, explained, and has a loom model",
        because: "an ordering that no model needs is a guess",
        to_mend: "write a row `| E7 | ... |` with a model of src/tests into src/docs/orderings.md, and \
         name the edge in a comment at both ends",
    }
    Orderings {
        holds: "an ordering beyond Relaxed names its edge above it, or says `No edge:` and why",
        because: "a reader has to know what the ordering pairs with",
        to_mend: "put `// Acquire (E2): pairs with ...` above it, with no empty line between",
    }
    Statistics {
        holds: "an atomic of `stat_atomic` is Relaxed",
        because: "figures are left out of the models, so no protocol may rest on one",
        to_mend: "take the atomic from `crate::sync`, where the models see it",
    }
    WithoutPair {
        holds: "a model of edges that hold without the barrier pair runs without it",
        because: "the pair would hide an ordering that is missing",
        to_mend: "start it with `model_without_pair`, or add it to the paragraph \"These models keep the \
         pair.\" of src/docs/orderings.md with the reason",
    }
    Mutations {
        holds: "each model fails for a mutation, and each mutation has its mark",
        because: "a model that passes whatever the code does proves nothing",
        to_mend: "put `// Mutation: NAME` above the statement and a row into the table that is named, in \
         the order of names",
    }
    AsideUnderLoom {
        holds: "tests and benches step aside under loom",
        because: "loom's types panic outside of a model",
        to_mend: "start the file with `#![cfg(not(loom))]`",
    }
    ProgramsListed {
        holds: "each program of tests and benches is in its manifest",
        because: "cargo passes over a program that no entry starts",
        to_mend: "add the entry, with `path = \"FILE\"` on a line of its own",
    }
    UnitTestsCompiled {
        holds: "a package whose library says `test = false` has no unit test in its sources",
        because: "cargo compiles no unit test there, and so passes over it without a word",
        to_mend: "take `test = false` away, or move the test to the package's `tests`",
    }
    FeaturesListed {
        holds: "README and the root page name each feature; README names each crate",
        because: "nobody turns on what no page names",
        to_mend: "add the row",
    }
    Version {
        holds: "README and CHANGELOG state the version of the manifest",
        because: "a reader copies the line",
        to_mend: "write the version of Cargo.toml",
    }
    NamesOfPages {
        holds: "the files that a page names exist, and have the names that it gives",
        because: "a page that points nowhere costs its reader the search",
        to_mend: "write the path from the page, from the root or from src, and the name as the code has \
         it",
    }
    ModelsOfPages {
        holds: "the models and edges that a page names exist",
        because: "a proof that is named and not there is none",
        to_mend: "name a model of src/tests, and an edge of src/docs/orderings.md",
    }
    ProtocolPages {
        holds: "a protocol page names each model and explains each edge",
        because: "the table of edges says what pairs, the page says which race that stops",
        to_mend: "add it to the races, or to the step, of the page beside the code",
    }
    Layers {
        holds: "docs/src/architecture.md has the folders of LAYERS, in this order",
        because: "the page is where a reader looks the order up",
        to_mend: "bring the table and LAYERS in tests/tidy/graph.rs to the same order",
    }
    Paths {
        holds: "in the table of paths of docs/src/architecture.md each file uses one that stands before it \
         in its row, or is used by it",
        because: "a path that the code no longer takes sends its reader to the wrong files",
        to_mend: "follow the call through the files, and write the row as it goes",
    }
    Links {
        holds: "each relative link of a page leads to a file, and to a heading in it",
        because: "a dead link costs its reader the search",
        to_mend: "correct the path from the page's own folder, or the anchor: a heading in lower case, \
         with dashes",
    }
    Commands {
        holds: "a step of .ci/run runs each command that README and the book print",
        because: "a command that nothing runs stops working and nobody knows",
        to_mend: "list it in .ci/readme.txt with the step that runs it (`readme` for one that no other \
         does), or correct the page",
    }
    Changelog {
        holds: "CHANGELOG.md has the form of Keep a Changelog; a first version only adds",
        because: "before a first release there is no user whose build could break",
        to_mend: "say under `Added` what there is",
    }
    Jobs {
        holds: "every step of .ci/run is in one job of .github/workflows, and a job is one call of it",
        because: "what a hosted run does and this machine does not is a second check, which differs",
        to_mend: "name the step in one job, `bash .ci/run STEP...`, and in one of the two lists of \
         .ci/run",
    }
    Steps {
        holds: "docs/src/checks.md has a row for each step, in the order of .ci/run",
        because: "the page is where a reader looks up what a step holds",
        to_mend: "add or move the row",
    }
    Series {
        holds: "the chapters of the patch series leave out no patch, no table and no claim, and name \
         what exists",
        because: "a comparison that leaves out what does not fit is an advertisement",
        to_mend: "give the claim its verdict, as the head of benches/series/chapter.rs says",
    }
}

impl Rule {
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
