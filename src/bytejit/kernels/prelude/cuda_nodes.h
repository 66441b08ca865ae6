// The nodes of a recorded CUDA graph, through the driver: a small memset becomes a kernel. A graph waits 1 to 3 us before and
// after a memset, 0.1 us between kernels, and cuDNN clears a workspace before many convolutions.
#pragma once
#include "glue.h"

namespace bj {

typedef void* Node;
struct Memset { unsigned long long to, pitch; unsigned value, element; unsigned long long width, height; };  // CUDA_MEMSET_NODE_PARAMS
struct Launch { void* function; unsigned grid[3], block[3], shared; void** params; void** extra; };           // CUDA_KERNEL_NODE_PARAMS
static int (*graph_nodes)(void*, Node*, u64*);
static int (*node_type)(Node, int*);
static int (*node_memset)(Node, Memset*);
static int (*node_before)(Node, Node*, u64*);
static int (*node_after)(Node, Node*, u64*);
static int (*add_kernel)(Node*, void*, const Node*, u64, const Launch*);
static int (*add_edges)(void*, const Node*, const Node*, u64);
static int (*destroy_node)(Node);
enum { MEMSET = 2, LARGEST = 1 << 20, THREADS = 256 };

// All of a node's neighbours; -1 where the driver does not tell (edges of another kind).
static i64 neighbours(int (*ask)(Node, Node*, u64*), Node node, Scratch& room, i64 most) {
    u64 count = 0;
    if (ask(node, nullptr, &count) || (i64)count > most) return -1;
    return count && ask(node, room.as<Node>(), &count) ? -1 : (i64)count;
}

// Whether a memset was replaced by `fill(address, word, words)`, with the same neighbours.
static bool to_kernel(void* graph, Node node, void* fill, Scratch& before, Scratch& after, i64 most) {
    Memset m;
    if (node_memset(node, &m)) return false;
    u64 bytes = m.width * m.element;
    if (m.height != 1 || bytes == 0 || bytes > LARGEST || (m.to & 3) || (bytes & 3)) return false;
    unsigned words = (unsigned)(bytes / 4);
    unsigned value = m.element == 1 ? m.value * 0x01010101u : m.element == 2 ? m.value * 0x00010001u : m.value;
    void* params[] = {&m.to, &value, &words};
    Launch launch = {fill, {(words + THREADS - 1) / THREADS, 1, 1}, {THREADS, 1, 1}, 0, params, nullptr};
    i64 b = neighbours(node_before, node, before, most), a = neighbours(node_after, node, after, most);
    Node made = nullptr;
    if (a < 0 || b < 0 || add_kernel(&made, graph, before.as<Node>(), (u64)b, &launch)) return false;
    Scratch same(a * 8);
    for (i64 i = 0; i < a; ++i) same.as<Node>()[i] = made;
    if (a && add_edges(graph, same.as<Node>(), after.as<Node>(), (u64)a)) {
        destroy_node(made);
        return false;
    }
    return destroy_node(node) == 0;
}

// How many memsets of a graph became kernels. -1: the driver does not show its nodes.
static i64 memsets_to_kernels(void* graph, void* fill) {
    u64 count = 0;
    if (graph_nodes(graph, nullptr, &count)) return -1;
    Scratch nodes((i64)count * 8), before((i64)count * 8), after((i64)count * 8);
    if (count && graph_nodes(graph, nodes.as<Node>(), &count)) return -1;
    i64 done = 0;
    for (u64 i = 0; i < count; ++i) {
        int type = -1;
        if (!node_type(nodes.as<Node>()[i], &type) && type == MEMSET)
            done += to_kernel(graph, nodes.as<Node>()[i], fill, before, after, (i64)count);
    }
    return done;
}

}  // namespace bj
