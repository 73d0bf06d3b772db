//! Pages without code: the mechanism, its exactness and its limits.
//!
//! * [`protocol`], [`drain`], [`central`], [`idle`]: the glossary; states, steps and races of a
//!   charge, of a drain, of credit that threads hand to each other, and of idle credit.
//! * [`cover`]: charges that pay for what an allocator hands out.
//! * [`threads`]: what one thread owns.
//! * [`barrier`]: the asymmetric barrier that both rest on.
//! * [`lifecycle`], [`pools`]: how a group comes and goes; where its memory comes from.
//! * [`reclaim`], [`pressure`]: which groups give memory back; what becomes of a charge that cannot
//!   be met at once.
//! * [`waiting`], [`no_wait`], [`high`], [`background`], [`victims`]: each of these ends of a charge.
//! * [`stalls`]: for how long chargers stood still.
//! * [`statistics`], [`nodes`]: how events are counted and read; how memory is accounted by node.
//! * [`orderings`]: every ordering edge, its two ends and its model.
//! * [`exactness`]: what each figure means and how far it may be off.
//! * [`limitations`]: what not to do with it.
//! * [`kernel_map`]: where the names come from, and where they mean something else here.

/// Declares an empty module for each page of text, with the page as its documentation.
macro_rules! pages {
    ($($name:ident: $path:literal,)*) => {$(
        #[doc = include_str!($path)]
        pub mod $name {}
    )*};
}

pages! {
    protocol: "../counter/README.md",
    drain: "../counter/drain.md",
    central: "../counter/central.md",
    idle: "../counter/idle.md",
    width: "../counter/width.md",
    allocator: "../counter/allocator.md",
    cover: "../counter/cover.md",
    threads: "../thread/README.md",
    barrier: "../sync/README.md",
    lifecycle: "../lifecycle/README.md",
    pools: "../pool/README.md",
    reclaim: "../reclaim/README.md",
    pressure: "../pressure/README.md",
    waiting: "../pressure/waiting.md",
    no_wait: "../pressure/no_wait.md",
    high: "../pressure/high.md",
    background: "../pressure/background.md",
    victims: "../pressure/victims.md",
    stalls: "../pressure/stalls.md",
    statistics: "../stat/README.md",
    nodes: "../kmem/README.md",
    orderings: "orderings.md",
    exactness: "exactness.md",
    limitations: "limitations.md",
    kernel_map: "kernel_map.md",
}
